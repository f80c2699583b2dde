#include "kernels/conv_tables.h"
#include "kernels/panel_conv_fill.h"
#include "kernels/panel_neon_core.h"

namespace fanin {
namespace {

// Eight pixels in two registers. NEON has no masked loads: whole vectors are loaded, and the ends
// of rows and images are read pixel by pixel.
struct Pixels {
  static constexpr int kLanes = 8;
  struct Type {
    float32x4_t low, high;
  };
  using Span = PixelSpan;
  const int64_t stride;
  explicit Pixels(int64_t pixels) : stride(pixels) {}
  static Span prepare(const PixelSpan& span) { return span; }
  Type load(const float* channel, const Span& span) const {
    const float* from = channel + span.offset;
    if (span.lanes == 0xff && stride == 1) return {vld1q_f32(from), vld1q_f32(from + 4)};
    return add({vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)}, channel, span);
  }
  Type add(Type value, const float* channel, const Span& span) const {
    float lanes[kLanes];
    store(lanes, value);
    gather_span(channel, span, stride, lanes);
    return {vld1q_f32(lanes), vld1q_f32(lanes + 4)};
  }
  static void store(float* to, Type value) {
    vst1q_f32(to, value.low);
    vst1q_f32(to + 4, value.high);
  }
};

template <int kVectors>
void sum_strips(const PanelPart& part, const float* segment, const float* bias,
                const ConvStrips& strips, float* sums) {
  PanelAhead none;
  for (int strip = 0; strip < strips.count; ++strip)
    sum_part<Neon, kVectors>(part, segment + strip * strips.panel_stride, bias,
                       sums + strip * strips.sums_stride, none);
}

template <int kVectors>
void finish_strips(const PanelPart& part, const float* segment, const float* bias,
                   const ConvStrips& strips, float* sums, const ConvOutput& output) {
  PanelAhead none;
  if (output.gated)
    sum_part<Neon, kVectors>(part, segment, bias, sums, none,
                       ToOutput<Neon, kVectors, true>(part, strips, output));
  else
    sum_part<Neon, kVectors>(part, segment, bias, sums, none,
                       ToOutput<Neon, kVectors, false>(part, strips, output));
}

void sum(const PanelPart& part, const float* segment, const float* bias, const ConvStrips& strips,
         float* sums) {
  if (strips.width == 8) return sum_strips<2>(part, segment, bias, strips, sums);
  sum_strips<4>(part, segment, bias, strips, sums);
}

void finish(const PanelPart& part, const float* segment, const float* bias,
            const ConvStrips& strips, float* sums, const ConvOutput& output) {
  if (strips.width == 8) return finish_strips<2>(part, segment, bias, strips, sums, output);
  finish_strips<4>(part, segment, bias, strips, sums, output);
}

}  // namespace

constexpr PanelConvOps kPanelConv16Neon = {
    16, 8, 0.00014, Pixels::kLanes, fill_columns<Pixels>, sum, finish};

}  // namespace fanin
