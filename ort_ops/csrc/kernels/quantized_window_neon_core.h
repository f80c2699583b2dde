// The sums of a window kernel of int8 layers with NEON: tbl looks up 16 bytes in a table of 64.
// Only for translation units of NEON.
#pragma once

#include <arm_neon.h>

#include "kernels/quantized_finish_neon.h"
#include "kernels/quantized_window_ops.h"

namespace fanin {
namespace {

constexpr QuantizedWindowGeometry kGeometry{32, 64, 16};

// Dot: the sums of four rows, add(x, weights) of four products of signed bytes each, total().
template <typename Dot>
void sum_bytes(const QuantizedSteps& steps, const uint8_t* const* samples, int, int32_t* sums) {
  constexpr int kVectors = kGeometry.rows / 4;
  Dot sum[kVectors];
  const uint8_t* x = samples[0];
  const uint8_t* step = steps.data;
  for (size_t i = 0; i < steps.count; ++i, step += kGeometry.step_bytes()) {
    const uint8_t* window = x + steps.displacements[i];
    const uint8x16x4_t table = {
        {vld1q_u8(window), vld1q_u8(window + 16), vld1q_u8(window + 32), vld1q_u8(window + 48)}};
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const uint8x16_t found = vqtbl4q_u8(table, vld1q_u8(step + 16 * v));
      const uint8x16_t weights = vld1q_u8(step + kGeometry.first_weight() + 16 * v);
      sum[v].add(vreinterpretq_s8_u8(found), vreinterpretq_s8_u8(weights));
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) vst1q_s32(sums + 4 * v, sum[v].total());
}

}  // namespace
}  // namespace fanin
