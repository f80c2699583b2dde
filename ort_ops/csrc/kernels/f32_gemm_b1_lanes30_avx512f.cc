// x stays float32: a window is two registers of 15 columns and a zero slot each, and one permute
// looks up 16 values.
#include <immintrin.h>

#include "kernels/weights_avx512.h"
#include "kernels/window_tables.h"

namespace fanin {
namespace {

constexpr int kRows = 64;
constexpr int kColumns = 15;
constexpr int kBlockBytes = 64;

// Byte v of an index dword serves row 16 v + dword.
constexpr WindowGeometry geometry() {
  WindowGeometry geometry{kRows, kColumns, 16, 2, kBlockBytes, 15, {}, {}, {}, {}};
  for (int r = 0; r < kRows; ++r)
    geometry.lane_byte[r] = static_cast<uint8_t>(4 * (r % 16) + r / 16);
  return geometry;
}

void split(const float* x, int64_t in_features, int64_t blocks, uint8_t* planes) {
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t left = in_features - b * kColumns;
    const __mmask16 lanes = left >= kColumns ? 0x7fff
                            : left <= 0      ? 0
                                             : static_cast<__mmask16>((1u << left) - 1);
    const float* from = left > 0 ? x + b * kColumns : x;
    _mm512_store_ps(planes + b * kBlockBytes, _mm512_maskz_loadu_ps(lanes, from));
  }
}

template <typename Weights, int kSamples>
void sum_samples(const WindowSteps& steps, const uint8_t* planes, size_t stride, float* sums) {
  __m512 sum[kSamples][4];
  for (int s = 0; s < kSamples; ++s)
    for (int v = 0; v < 4; ++v) sum[s][v] = _mm512_setzero_ps();
  const uint8_t* step = steps.data;
  const uint8_t* window = planes;
  for (size_t i = 0; i < steps.count; ++i, step += kRows * (1 + Weights::kBytes)) {
    window += static_cast<size_t>(steps.advances[i]) * kBlockBytes;
    // A permute reads the low 5 bits of an index dword.
    __m512i indices = _mm512_load_si512(step);
    asm("" : "+v"(indices));  // else GCC loads the line four times
    const __m512i index[4] = {indices, _mm512_srli_epi32(indices, 8),
                              _mm512_srli_epi32(indices, 16), _mm512_srli_epi32(indices, 24)};
    const uint8_t* weights = step + kRows;
#pragma GCC unroll 4
    for (int s = 0; s < kSamples; ++s) {
      const __m512 block0 = _mm512_load_ps(window + s * stride);
      const __m512 block1 = _mm512_load_ps(window + s * stride + kBlockBytes);
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v)
        sum[s][v] = _mm512_fmadd_ps(_mm512_permutex2var_ps(block0, index[v], block1),
                                    Weights::load(weights, v), sum[s][v]);
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

constexpr WindowOps kWindowLanes30Avx512f[kValueTypes] = {
    ops<Float32Weights>(), ops<Float16Weights>(), ops<Bfloat16Weights>()};

}  // namespace fanin
