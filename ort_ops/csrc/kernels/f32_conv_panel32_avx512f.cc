#include "kernels/conv_tables.h"
#include "kernels/panel_avx2_vector.h"
#include "kernels/panel_avx512_vector.h"
#include "kernels/panel_conv_fill.h"
#include "kernels/panel_core.h"

namespace fanin {
namespace {

// Masked loads read nothing outside the image, and combine spans of several rows.
template <int kVectorLanes>
struct Loads {
  static constexpr int kLanes = kVectorLanes;  // 8 or 16 of the register's
  using Type = __m512;
  static void store(float* to, Type value) {
    if (kLanes == 16)
      _mm512_store_ps(to, value);
    else
      _mm256_store_ps(to, _mm512_castps512_ps256(value));
  }
};

template <int kVectorLanes>
struct Contiguous : Loads<kVectorLanes> {
  struct Span {
    int64_t offset;
    __mmask16 lanes;
  };
  explicit Contiguous(int64_t) {}
  static Span prepare(const PixelSpan& span) {
    return {span.offset, static_cast<__mmask16>(span.lanes)};
  }
  static __m512 load(const float* channel, const Span& span) {
    return _mm512_maskz_loadu_ps(span.lanes, channel + span.offset);
  }
  static __m512 add(__m512 value, const float* channel, const Span& span) {
    return _mm512_mask_loadu_ps(value, span.lanes, channel + span.offset);
  }
};

template <int kVectorLanes>
struct EverySecond : Loads<kVectorLanes> {
  struct Span {
    int64_t offset;
    __mmask16 low, high, lanes;
  };
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  explicit EverySecond(int64_t) {}
  static Span prepare(const PixelSpan& span) {
    return {span.offset, static_cast<__mmask16>(span.spread),
            static_cast<__mmask16>(span.spread >> 16), static_cast<__mmask16>(span.lanes)};
  }
  __m512 load(const float* channel, const Span& span) const {
    const float* from = channel + span.offset;
    return _mm512_permutex2var_ps(_mm512_maskz_loadu_ps(span.low, from), even,
                                  _mm512_maskz_loadu_ps(span.high, from + 16));
  }
  __m512 add(__m512 value, const float* channel, const Span& span) const {
    return _mm512_mask_mov_ps(value, span.lanes, load(channel, span));
  }
};

template <int kVectorLanes>
struct Gathered : Loads<kVectorLanes> {
  using Span = PixelSpan;
  const int64_t stride;
  explicit Gathered(int64_t pixels) : stride(pixels) {}
  static Span prepare(const PixelSpan& span) { return span; }
  __m512 load(const float* channel, const Span& span) const {
    return add(_mm512_setzero_ps(), channel, span);
  }
  __m512 add(__m512 value, const float* channel, const Span& span) const {
    alignas(64) float lanes[16];
    _mm512_store_ps(lanes, value);
    gather_span(channel, span, stride, lanes);
    return _mm512_load_ps(lanes);
  }
};

template <int kLanes>
void fill_lanes(const ConvSource& source, const ConvColumn* columns, size_t count,
                const ConvStrips& strips, float* segment) {
  switch (source.stride) {
    case 1:
      return fill_columns<Contiguous<kLanes>>(source, columns, count, strips, segment);
    case 2:
      return fill_columns<EverySecond<kLanes>>(source, columns, count, strips, segment);
    default:
      return fill_columns<Gathered<kLanes>>(source, columns, count, strips, segment);
  }
}

void fill(const ConvSource& source, const ConvColumn* columns, size_t count,
          const ConvStrips& strips, float* segment) {
  if (strips.width == 8) return fill_lanes<8>(source, columns, count, strips, segment);
  fill_lanes<16>(source, columns, count, strips, segment);
}

// Sums of 8 rows stay in registers for all widths. A strip of 64 pixels would need four rows at a
// time and half as many columns per segment, and is no faster (Cascade Lake).
template <typename Vector, int kVectors>
void sum_strips(const PanelPart& part, const float* segment, const float* bias,
                const ConvStrips& strips, float* sums) {
  PanelAhead none;
  for (int strip = 0; strip < strips.count; ++strip)
    sum_part<Vector, kVectors, 8>(part, segment + strip * strips.panel_stride, bias,
                                  sums + strip * strips.sums_stride, none);
}

template <typename Vector, int kVectors>
void finish_strips(const PanelPart& part, const float* segment, const float* bias,
                   const ConvStrips& strips, float* sums, const ConvOutput& output) {
  PanelAhead none;
  if (output.gated)
    sum_part<Vector, kVectors, 8>(part, segment, bias, sums, none,
                                  ToOutput<Vector, kVectors, true>(part, strips, output));
  else
    sum_part<Vector, kVectors, 8>(part, segment, bias, sums, none,
                                  ToOutput<Vector, kVectors, false>(part, strips, output));
}

template <typename Wide>
void sum(const PanelPart& part, const float* segment, const float* bias, const ConvStrips& strips,
         float* sums) {
  switch (strips.width) {
    case 8:
      return sum_strips<Avx2, 1>(part, segment, bias, strips, sums);
    case 16:
      return sum_strips<Wide, 1>(part, segment, bias, strips, sums);
    default:
      return sum_strips<Wide, 2>(part, segment, bias, strips, sums);
  }
}

template <typename Wide>
void finish(const PanelPart& part, const float* segment, const float* bias,
            const ConvStrips& strips, float* sums, const ConvOutput& output) {
  switch (strips.width) {
    case 8:
      return finish_strips<Avx2, 1>(part, segment, bias, strips, sums, output);
    case 16:
      return finish_strips<Wide, 1>(part, segment, bias, strips, sums, output);
    default:
      return finish_strips<Wide, 2>(part, segment, bias, strips, sums, output);
  }
}

}  // namespace

constexpr PanelConvOps kPanelConv32Avx512f = {32,   8,           0.000024,      16,
                                              fill, sum<Avx512>, finish<Avx512>};
constexpr PanelConvOps kPanelConv32LoadsAvx512f = {
    32, 8, 0.000022, 16, fill, sum<Avx512Loads>, finish<Avx512Loads>};

}  // namespace fanin
