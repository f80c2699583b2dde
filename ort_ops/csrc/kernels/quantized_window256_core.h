// The sums of a window kernel of int8 layers with 256-bit registers: vpermd looks up eight of eight
// quads of neighboring columns. Only for translation units of one instruction set.
#pragma once

#include <immintrin.h>

#include "kernels/quantized_finish_avx2.h"
#include "kernels/quantized_window_ops.h"

namespace fanin {
namespace {

constexpr QuantizedWindowGeometry kGeometry{64, 32, 8, 4};
constexpr int kStepBytes = kGeometry.step_bytes();

// Dot: add(sum, x, weights), for four products of a byte of x and one of the weights in each lane.
template <typename Dot>
void sum_quads(const QuantizedSteps& steps, const uint8_t* const* samples, int, int32_t* sums) {
  constexpr int kVectors = kGeometry.rows / 8;
  const auto load = [](const uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  };
  __m256i sum[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) sum[v] = _mm256_setzero_si256();
  const uint8_t* x = samples[0];
  const uint8_t* step = steps.data;
  for (size_t i = 0; i < steps.count; ++i, step += kStepBytes) {
    const __m256i window = load(x + steps.displacements[i]);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256i index = load(step + 32 * half);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v += 2) {
        // The permute ignores the bits above its index.
        sum[v + half] = Dot::add(sum[v + half], _mm256_permutevar8x32_epi32(window, index),
                                 load(step + kGeometry.first_weight() + 32 * (v + half)));
        index = _mm256_srli_epi32(index, 8);
      }
    }
    constexpr int kAhead = 4096;
#pragma GCC unroll 8
    for (int line = 0; line < kStepBytes; line += 64)
      _mm_prefetch(reinterpret_cast<const char*>(step) + kAhead + line, _MM_HINT_T0);
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v)
    _mm256_store_si256(reinterpret_cast<__m256i*>(sums + 8 * v), sum[v]);
}

}  // namespace
}  // namespace fanin
