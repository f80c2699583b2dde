#include "kernels/conv_tables.h"
#include "kernels/panel_avx2_vector.h"
#include "kernels/panel_conv_fill.h"
#include "kernels/panel_core.h"

namespace fanin {
namespace {

// Lane i from bit i.
__m256i mask_of(uint32_t bits) {
  const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), each),
                            each);
}

// Masked loads read nothing outside the image. Lanes of other spans are zero, so an OR combines
// spans of several rows.
struct Loads {
  static constexpr int kLanes = 8;
  using Type = __m256;
  static void store(float* to, Type value) { _mm256_store_ps(to, value); }
};

struct Contiguous : Loads {
  struct Span {
    int64_t offset;
    __m256i lanes;
  };
  explicit Contiguous(int64_t) {}
  static Span prepare(const PixelSpan& span) { return {span.offset, mask_of(span.lanes)}; }
  static __m256 load(const float* channel, const Span& span) {
    return _mm256_maskload_ps(channel + span.offset, span.lanes);
  }
  static __m256 add(__m256 value, const float* channel, const Span& span) {
    return _mm256_or_ps(value, load(channel, span));
  }
};

struct EverySecond : Loads {
  struct Span {
    int64_t offset;
    __m256i low, high;
  };
  explicit EverySecond(int64_t) {}
  static Span prepare(const PixelSpan& span) {
    return {span.offset, mask_of(span.spread), mask_of(span.spread >> 8)};
  }
  static __m256 load(const float* channel, const Span& span) {
    const float* from = channel + span.offset;
    // Even elements of both registers within each half; then restores the order of the halves.
    const __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(
        _mm256_maskload_ps(from, span.low), _mm256_maskload_ps(from + 8, span.high), 0x88));
    return _mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xd8));
  }
  static __m256 add(__m256 value, const float* channel, const Span& span) {
    return _mm256_or_ps(value, load(channel, span));
  }
};

struct Gathered : Loads {
  using Span = PixelSpan;
  const int64_t stride;
  explicit Gathered(int64_t pixels) : stride(pixels) {}
  static Span prepare(const PixelSpan& span) { return span; }
  __m256 load(const float* channel, const Span& span) const {
    return add(_mm256_setzero_ps(), channel, span);
  }
  __m256 add(__m256 value, const float* channel, const Span& span) const {
    alignas(32) float lanes[8];
    _mm256_store_ps(lanes, value);
    gather_span(channel, span, stride, lanes);
    return _mm256_load_ps(lanes);
  }
};

void fill(const ConvSource& source, const ConvColumn* columns, size_t count,
          const ConvStrips& strips, float* segment) {
  switch (source.stride) {
    case 1:
      return fill_columns<Contiguous>(source, columns, count, strips, segment);
    case 2:
      return fill_columns<EverySecond>(source, columns, count, strips, segment);
    default:
      return fill_columns<Gathered>(source, columns, count, strips, segment);
  }
}

// 8 sums and the weights fill the 16 registers.
template <int kVectors>
void sum_strips(const PanelPart& part, const float* segment, const float* bias,
                const ConvStrips& strips, float* sums) {
  PanelAhead none;
  for (int strip = 0; strip < strips.count; ++strip)
    sum_part<Avx2, kVectors, 8 / kVectors>(part, segment + strip * strips.panel_stride, bias,
                                           sums + strip * strips.sums_stride, none);
}

template <int kVectors>
void finish_strips(const PanelPart& part, const float* segment, const float* bias,
                   const ConvStrips& strips, float* sums, const ConvOutput& output) {
  PanelAhead none;
  if (output.gated)
    sum_part<Avx2, kVectors, 8 / kVectors>(part, segment, bias, sums, none,
                                           ToOutput<Avx2, kVectors, true>(part, strips, output));
  else
    sum_part<Avx2, kVectors, 8 / kVectors>(part, segment, bias, sums, none,
                                           ToOutput<Avx2, kVectors, false>(part, strips, output));
}

void sum(const PanelPart& part, const float* segment, const float* bias, const ConvStrips& strips,
         float* sums) {
  if (strips.width == 8) return sum_strips<1>(part, segment, bias, strips, sums);
  sum_strips<2>(part, segment, bias, strips, sums);
}

void finish(const PanelPart& part, const float* segment, const float* bias,
            const ConvStrips& strips, float* sums, const ConvOutput& output) {
  if (strips.width == 8) return finish_strips<1>(part, segment, bias, strips, sums, output);
  finish_strips<2>(part, segment, bias, strips, sums, output);
}

}  // namespace

constexpr PanelConvOps kPanelConv16Avx2 = {16, 8, 0.00008, Loads::kLanes, fill, sum, finish};

}  // namespace fanin
