// x is split into two planes of 16-bit halves, so that one permute looks up 32 values in two blocks
// of 32 slots; unpacking the two halves gives exact float32. A block is 31 columns and a zero slot,
// so that padding reads zero instead of x.
//
// A window of four blocks takes two permutes and a blend, twice the work of window63, but has less
// padding: one sample is limited by the bytes of its weights, so it uses the wide window.
#include <immintrin.h>

#include "kernels/window_tables.h"
#include "kernels/window_weights_avx512.h"

namespace fanin {
namespace {

constexpr int kRows = 64;
constexpr int kColumns = 31;
constexpr int kBlockBytes = 128;  // [32 low halves][32 high halves]

// Prefetch distance of four steps. The wide window is limited by its bytes, which the CPU's
// prefetchers do not fetch early enough: with prefetching, 50.2 us become 46.2 for 3072 -> 768 at
// 90 % (L3), and 23.2 become 22.0 at 95 % (L2).
constexpr int kFetchAhead = 1280;

// The low bytes of the index words serve rows 0 to 31, the high bytes rows 32 to 63; inside these,
// unpacking takes words 0-3 of each 128-bit lane to one vector and words 4-7 to the next.
constexpr WindowGeometry geometry() {
  WindowGeometry geometry{kRows, kColumns, 32, 32, 4, kBlockBytes, 0, {}, {}, {}, {}};
  for (int r = 0; r < kRows; ++r) {
    const int vector = r % 32 / 16, lane = r % 16;
    const int word = lane / 4 * 8 + vector * 4 + lane % 4;
    geometry.lane_byte[r] = static_cast<uint8_t>(2 * word + r / 32);
  }
  return geometry;
}

void split(const float* x, int64_t in_features, int64_t blocks, uint8_t* planes) {
  alignas(64) uint16_t even[32], odd[32];
  for (int i = 0; i < 32; ++i) {
    even[i] = static_cast<uint16_t>(2 * i);
    odd[i] = static_cast<uint16_t>(2 * i + 1);
  }
  const __m512i evens = _mm512_load_si512(even), odds = _mm512_load_si512(odd);
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t left = in_features - b * kColumns;
    const float* from = left > 0 ? x + b * kColumns : x;
    const __m512i first = _mm512_castps_si512(_mm512_maskz_loadu_ps(first_lanes(left), from));
    const __m512i second =
        _mm512_castps_si512(_mm512_maskz_loadu_ps(first_lanes(left - 16) & 0x7fff, from + 16));
    uint8_t* to = planes + b * kBlockBytes;
    _mm512_store_si512(to, _mm512_permutex2var_epi16(first, evens, second));
    _mm512_store_si512(to + 64, _mm512_permutex2var_epi16(first, odds, second));
  }
}

// Looks up the halves at `index` (low 6 bits of each word) in two blocks of a plane.
__m512i look_up_two(const uint8_t* plane, __m512i index) {
  return _mm512_permutex2var_epi16(_mm512_load_si512(plane), index,
                                   _mm512_load_si512(plane + kBlockBytes));
}

// `far` marks the words that look into the third and fourth block.
__m512i look_up(const uint8_t* plane, __m512i index, __mmask32 far) {
  return _mm512_mask_blend_epi16(far, look_up_two(plane, index),
                                 look_up_two(plane + 2 * kBlockBytes, index));
}

template <typename Weights, int kSamples>
void sum_samples(const WindowSteps& steps, const uint8_t* planes, size_t stride, float* sums) {
  const __m512i far_bit = _mm512_set1_epi16(64);
  __m512 sum[kSamples][4];
  for (int s = 0; s < kSamples; ++s)
    for (int v = 0; v < 4; ++v) sum[s][v] = _mm512_setzero_ps();
  const uint8_t* step = steps.data;
  const uint8_t* window = planes;
  for (size_t i = 0; i < steps.count; ++i, step += kRows * (1 + Weights::kBytes)) {
    window += static_cast<size_t>(steps.advances[i]) * kBlockBytes;
    for (int line = 0; line < kRows * (1 + Weights::kBytes); line += 64)
      _mm_prefetch(step + kFetchAhead + line, _MM_HINT_T0);
    __m512i low_rows = _mm512_load_si512(step);
    asm("" : "+v"(low_rows));  // else GCC loads the line for every use
    const __m512i high_rows = _mm512_srli_epi16(low_rows, 8);
    const __mmask32 low_far = _mm512_test_epi16_mask(low_rows, far_bit);
    const __mmask32 high_far = _mm512_test_epi16_mask(high_rows, far_bit);
    const uint8_t* weights = step + kRows;
#pragma GCC unroll 4
    for (int s = 0; s < kSamples; ++s) {
      const uint8_t* low = window + s * stride;
      const uint8_t* high = low + 64;
      const __m512i a = look_up(low, low_rows, low_far);
      const __m512i b = look_up(high, low_rows, low_far);
      const __m512i c = look_up(low, high_rows, high_far);
      const __m512i d = look_up(high, high_rows, high_far);
      const __m512i x[4] = {_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b),
                            _mm512_unpacklo_epi16(c, d), _mm512_unpackhi_epi16(c, d)};
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v)
        sum[s][v] =
            _mm512_fmadd_ps(_mm512_castsi512_ps(x[v]), Weights::load(weights, v), sum[s][v]);
    }
  }
  for (int s = 0; s < kSamples; ++s)
    for (int v = 0; v < 4; ++v) _mm512_store_ps(sums + s * kRows + 16 * v, sum[s][v]);
}

template <typename Weights>
void sum(const WindowSteps& steps, const uint8_t* planes, size_t stride, int samples, float* sums) {
  switch (samples) {
    case 1:
      return sum_samples<Weights, 1>(steps, planes, stride, sums);
    case 2:
      return sum_samples<Weights, 2>(steps, planes, stride, sums);
    case 3:
      return sum_samples<Weights, 3>(steps, planes, stride, sums);
    default:
      return sum_samples<Weights, 4>(steps, planes, stride, sums);
  }
}

template <typename Weights>
constexpr WindowOps ops() {
  return {with_weights<Weights>(geometry()), split, sum<Weights>, 4};
}

}  // namespace

constexpr WindowOps kWindow124Avx512bw = ops<Float32Weights>();

}  // namespace fanin
