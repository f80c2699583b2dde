// x stays float32: a window is four registers, and two permutes and a blend look up 16 values. It
// moves by single registers, and every fourth has a zero slot, so that padding reads zero instead
// of x.
#include <immintrin.h>

#include "kernels/window_tables.h"
#include "kernels/window_weights_avx512.h"

namespace fanin {
namespace {

constexpr int kRows = 64;
constexpr int kColumns = 63;  // of 64 positions
constexpr int kBlockSlots = 16;
constexpr int kBlockBytes = 64;

// Byte v of an index dword serves row 16 v + dword.
constexpr WindowGeometry geometry() {
  WindowGeometry geometry{kRows, kColumns, 64, kBlockSlots, 4, kBlockBytes, 0, {}, {}, {}, {}};
  for (int r = 0; r < kRows; ++r)
    geometry.lane_byte[r] = static_cast<uint8_t>(4 * (r % 16) + r / 16);
  return geometry;
}

void split(const float* x, int64_t in_features, int64_t blocks, uint8_t* planes) {
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t quarter = b % 4, column = b / 4 * kColumns + quarter * kBlockSlots;
    const __mmask16 lanes = first_lanes(in_features - column) & (quarter == 3 ? 0x7fff : 0xffff);
    const float* from = lanes ? x + column : x;
    _mm512_store_ps(planes + b * kBlockBytes, _mm512_maskz_loadu_ps(lanes, from));
  }
}

// Index dwords shifted by 8 v (a permute reads the low 5 bits), and the lanes that look into the
// second half of the window.
struct Index {
  __m512i lanes[4];
  __mmask16 far[4];
};

Index unpack(const uint8_t* step) {
  __m512i bytes = _mm512_load_si512(step);
  asm("" : "+v"(bytes));  // else GCC loads the line for every use
  return {{bytes, _mm512_srli_epi32(bytes, 8), _mm512_srli_epi32(bytes, 16),
           _mm512_srli_epi32(bytes, 24)},
          {_mm512_test_epi32_mask(bytes, _mm512_set1_epi32(32)),
           _mm512_test_epi32_mask(bytes, _mm512_set1_epi32(32 << 8)),
           _mm512_test_epi32_mask(bytes, _mm512_set1_epi32(32 << 16)),
           _mm512_test_epi32_mask(bytes, _mm512_set1_epi32(32 << 24))}};
}

// A permute overwrites one of its registers. GCC would copy that register first, which occupies a
// port of the permutes; reloading it does not.
__m512 load_again(const uint8_t* block) {
  asm("" : "+r"(block));
  return _mm512_load_ps(block);
}

template <typename Weights, int kSamples>
void sum_samples(const WindowSteps& steps, const uint8_t* planes, size_t stride, float* sums) {
  __m512 sum[kSamples][4];
#pragma GCC unroll 4
  for (int s = 0; s < kSamples; ++s)
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) sum[s][v] = _mm512_setzero_ps();
  const uint8_t* step = steps.data;
  const uint8_t* window = planes;
  for (size_t i = 0; i < steps.count; ++i, step += kRows * (1 + Weights::kBytes)) {
    window += static_cast<size_t>(steps.advances[i]) * kBlockBytes;
    const Index index = unpack(step);
    const uint8_t* weights = step + kRows;
#pragma GCC unroll 4
    for (int s = 0; s < kSamples; ++s) {
      const uint8_t* x = window + s * stride;
      const __m512 block1 = _mm512_load_ps(x + kBlockBytes);
      const __m512 block3 = _mm512_load_ps(x + 3 * kBlockBytes);
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        const __m512 near_values = _mm512_permutex2var_ps(load_again(x), index.lanes[v], block1);
        const __m512 far_values =
            _mm512_permutex2var_ps(load_again(x + 2 * kBlockBytes), index.lanes[v], block3);
        sum[s][v] = _mm512_fmadd_ps(_mm512_mask_blend_ps(index.far[v], near_values, far_values),
                                    Weights::load(weights, v), sum[s][v]);
      }
    }
  }
#pragma GCC unroll 4
  for (int s = 0; s < kSamples; ++s)
#pragma GCC unroll 4
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

constexpr WindowOps kWindow63Avx512f[kFloatTypes] = {ops<Float32Weights>(), ops<Float16Weights>(),
                                                     ops<Bfloat16Weights>()};

}  // namespace fanin
