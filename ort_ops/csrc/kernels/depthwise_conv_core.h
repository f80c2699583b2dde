// DepthwiseConvOps as templates over a vector type. Only for translation units of one instruction
// set, see panel_core.h. Vector: kLanes, load, store, broadcast, fma, mul, clip.
#pragma once

#include "kernels/depthwise_conv_ops.h"
#include "kernels/panel_epilogue.h"

namespace fanin {
namespace {

// kPixels sums stay in registers while all taps add to them. kStep: floats from pixel to pixel, or
// 0 if known at run time only (row.step).
template <typename Vector, int kPixels, int kStep>
inline __attribute__((always_inline)) void sum_pixels(const DepthwiseRow& row, int64_t first) {
  const int64_t step = kStep ? kStep : row.step;
  const int64_t offset = first * step;
  typename Vector::Type sum[kPixels];
  const typename Vector::Type bias = Vector::load(row.bias);
#pragma GCC unroll 14
  for (int p = 0; p < kPixels; ++p) sum[p] = bias;
  const float* weights = row.weights;
  const float* const* end = row.taps + row.tap_count;
  for (const float* const* tap = row.taps; tap != end; ++tap, weights += Vector::kLanes) {
    const typename Vector::Type weight = Vector::load(weights);
    const float* x = *tap + offset;
    // Keeps the address in one register for all pixels.
    asm("" : "+r"(x));
#pragma GCC unroll 14
    for (int p = 0; p < kPixels; ++p)
      sum[p] = Vector::fma(weight, Vector::load(x + p * step), sum[p]);
  }
  const typename Vector::Type low = Vector::broadcast(&row.clip_min);
  const typename Vector::Type high = Vector::broadcast(&row.clip_max);
  const typename Vector::Type scale = Vector::broadcast(&row.gate_scale);
  const typename Vector::Type shift = Vector::broadcast(&row.gate_shift);
#pragma GCC unroll 14
  for (int p = 0; p < kPixels; ++p) {
    sum[p] = Vector::clip(sum[p], low, high);
    if (row.gated) sum[p] = gated<Vector>(sum[p], scale, shift);
    Vector::store(row.sums + (first + p) * Vector::kLanes, sum[p]);
  }
}

// Images are often multiples of 7 pixels wide.
template <typename Vector, int kStep>
void sum_row(const DepthwiseRow& row) {
  int64_t at = 0;
  for (; at + 14 <= row.pixels; at += 14) sum_pixels<Vector, 14, kStep>(row, at);
  for (; at + 7 <= row.pixels; at += 7) sum_pixels<Vector, 7, kStep>(row, at);
  for (; at + 3 <= row.pixels; at += 3) sum_pixels<Vector, 3, kStep>(row, at);
  for (; at < row.pixels; ++at) sum_pixels<Vector, 1, kStep>(row, at);
}

template <typename Vector>
void sum_channels(const DepthwiseRow& row) {
  switch (row.step / Vector::kLanes) {
    case 1:
      return sum_row<Vector, Vector::kLanes>(row);
    case 2:
      return sum_row<Vector, 2 * Vector::kLanes>(row);
    default:
      return sum_row<Vector, 0>(row);
  }
}

}  // namespace
}  // namespace fanin
