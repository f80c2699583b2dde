// The epilogue of quantized layers for NEON, as quantized_finish_avx512.h.
#pragma once

#include <arm_neon.h>

#include "kernels/quantized_finish_ops.h"

namespace fanin {
namespace {

// Four elements, or fewer of them and zeros.
template <typename T>
void copy_some(const T* from, int count, T (&to)[4]) {
  for (int i = 0; i < 4; ++i) to[i] = i < count ? from[i] : T{};
}

inline int32x4_t load_some(const int32_t* from, int count) {
  if (count == 4) return vld1q_s32(from);
  int32_t four[4];
  copy_some(from, count, four);
  return vld1q_s32(four);
}

inline float32x4_t load_some(const float* from, int count) {
  if (count == 4) return vld1q_f32(from);
  float four[4];
  copy_some(from, count, four);
  return vld1q_f32(four);
}

template <QuantizedType kType>
int32x4_t load_quantized(const void* from, int64_t at, int count) {
  int32_t four[4] = {};
  for (int i = 0; i < count; ++i)
    four[i] = kType == QuantizedType::kUint8 ? static_cast<const uint8_t*>(from)[at + i]
                                             : static_cast<const int8_t*>(from)[at + i];
  return vld1q_s32(four);
}

// The lowest byte of each lane.
inline void store_bytes(uint8_t* to, int32x4_t lanes, int count) {
  const uint16x4_t halves = vmovn_u32(vreinterpretq_u32_s32(lanes));
  const uint8x8_t bytes = vmovn_u16(vcombine_u16(halves, halves));
  uint8_t eight[8];
  vst1_u8(eight, bytes);
  __builtin_memcpy(to, eight, static_cast<size_t>(count));
}

// The lanes from number `first` on, at most 4. A copy of the arguments stays in registers, see
// quantized_finish_avx512.h.
template <QuantizedType kType, bool kResidual>
void finish_lanes(const QuantizedFinish finish, const int32_t* sums, int rows, int first,
                  int count) {
  const int32x4_t bias = finish.bias ? load_some(finish.bias + first, count) : vdupq_n_s32(0);
  const int32x4_t weights = load_some(finish.weight_sums + first, count);
  const float32x4_t multipliers = load_some(finish.multipliers + first, count);
  const float32x4_t float_bias =
      finish.float_bias ? load_some(finish.float_bias + first, count) : vdupq_n_f32(0.0f);
  const float32x4_t low = vdupq_n_f32(finish.low), high = vdupq_n_f32(finish.high);
  for (int s = 0; s < finish.samples; ++s) {
    const int64_t at = s * finish.stride + first;
    const int32x4_t sum = vaddq_s32(vld1q_s32(sums + s * rows + first),
                                    vmlsq_n_s32(bias, weights, finish.zero_points[s]));
    float32x4_t multiplier = multipliers;
    if (finish.sample_multipliers)
      multiplier = vmulq_f32(vdupq_n_f32(finish.sample_multipliers[s]), multipliers);
    float32x4_t value = vmulq_f32(vcvtq_f32_s32(sum), multiplier);
    if (finish.float_bias) value = vaddq_f32(value, float_bias);
    if constexpr (kType == QuantizedType::kFloat32) {
      if constexpr (kResidual)
        value = vaddq_f32(value, load_some(static_cast<const float*>(finish.residual) + at, count));
      // Comparisons instead of max and min: NaN stays NaN.
      value = vbslq_f32(vcltq_f32(value, low), low, value);
      value = vbslq_f32(vcgtq_f32(value, high), high, value);
      float* to = static_cast<float*>(finish.y) + at;
      if (count == 4) {
        vst1q_f32(to, value);
      } else {
        float four[4];
        vst1q_f32(four, value);
        for (int i = 0; i < count; ++i) to[i] = four[i];
      }
    } else {
      if constexpr (kResidual) {
        const int32x4_t residual = vsubq_s32(load_quantized<kType>(finish.residual, at, count),
                                             vdupq_n_s32(finish.residual_zero_point));
        value = vaddq_f32(value, vmulq_n_f32(vcvtq_f32_s32(residual), finish.residual_multiplier));
      }
      // NaN becomes the lower bound.
      value = vbslq_f32(vcgtq_f32(value, low), value, low);
      value = vbslq_f32(vcltq_f32(value, high), value, high);
      store_bytes(static_cast<uint8_t*>(finish.y) + at,
                  vaddq_s32(vcvtnq_s32_f32(value), vdupq_n_s32(finish.zero_point)), count);
    }
  }
}

template <QuantizedType kType, bool kResidual>
void finish_group(const QuantizedFinish& finish, const int32_t* sums, int rows) {
  for (int first = 0; first < finish.lanes; first += 4)
    finish_lanes<kType, kResidual>(finish, sums, rows, first,
                                   finish.lanes - first < 4 ? finish.lanes - first : 4);
}

template <int kRows>
void finish(const QuantizedFinish& finish, const int32_t* sums) {
  constexpr QuantizedType kU8 = QuantizedType::kUint8, kS8 = QuantizedType::kInt8,
                          kF32 = QuantizedType::kFloat32;
  const bool residual = finish.residual != nullptr;
  switch (finish.type) {
    case kU8:
      return residual ? finish_group<kU8, true>(finish, sums, kRows)
                      : finish_group<kU8, false>(finish, sums, kRows);
    case kS8:
      return residual ? finish_group<kS8, true>(finish, sums, kRows)
                      : finish_group<kS8, false>(finish, sums, kRows);
    case kF32:
      return residual ? finish_group<kF32, true>(finish, sums, kRows)
                      : finish_group<kF32, false>(finish, sums, kRows);
  }
}

}  // namespace
}  // namespace fanin
