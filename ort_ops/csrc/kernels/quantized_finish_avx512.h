// The epilogue of quantized layers for AVX-512BW. Only for translation units of one instruction
// set, which are compiled without contraction to multiply-adds: everything has internal linkage.
#pragma once

#include <immintrin.h>

#include "kernels/quantized_finish_ops.h"

namespace fanin {
namespace {

template <QuantizedType kType>
__m512i load_quantized(const void* from, int64_t at, __mmask16 lanes) {
  if constexpr (kType == QuantizedType::kUint8)
    return _mm512_cvtepu8_epi32(
        _mm_maskz_loadu_epi8(lanes, static_cast<const uint8_t*>(from) + at));
  else
    return _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(lanes, static_cast<const int8_t*>(from) + at));
}

// The lanes from number `first` on, at most 16. A copy of the arguments stays in registers; stores
// to y could change the original.
template <QuantizedType kType, bool kResidual>
void finish_lanes(const QuantizedFinish finish, const int32_t* sums, int rows, int first,
                  __mmask16 lanes) {
  const __m512i bias =
      finish.bias ? _mm512_maskz_loadu_epi32(lanes, finish.bias + first) : _mm512_setzero_si512();
  const __m512i weights = _mm512_maskz_loadu_epi32(lanes, finish.weight_sums + first);
  const __m512 multipliers = _mm512_maskz_loadu_ps(lanes, finish.multipliers + first);
  const __m512 float_bias = finish.float_bias
                                ? _mm512_maskz_loadu_ps(lanes, finish.float_bias + first)
                                : _mm512_setzero_ps();
  const __m512 low = _mm512_set1_ps(finish.low), high = _mm512_set1_ps(finish.high);
  const auto start_of = [&](int s) {
    return _mm512_sub_epi32(bias,
                            _mm512_mullo_epi32(weights, _mm512_set1_epi32(finish.zero_points[s])));
  };
  __m512i start = start_of(0);
  for (int s = 0; s < finish.samples; ++s) {
    const int64_t at = s * finish.stride + first;
    if (!finish.common_zero_point) start = start_of(s);
    const __m512i sum = _mm512_add_epi32(_mm512_load_si512(sums + s * rows + first), start);
    __m512 multiplier = multipliers;
    if (finish.sample_multipliers)
      multiplier = _mm512_mul_ps(_mm512_set1_ps(finish.sample_multipliers[s]), multipliers);
    __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), multiplier);
    if (finish.float_bias) value = _mm512_add_ps(value, float_bias);
    if constexpr (kType == QuantizedType::kFloat32) {
      if constexpr (kResidual)
        value = _mm512_add_ps(
            value, _mm512_maskz_loadu_ps(lanes, static_cast<const float*>(finish.residual) + at));
      // NaN stays NaN: the instructions return their second operand.
      value = _mm512_min_ps(high, _mm512_max_ps(low, value));
      _mm512_mask_storeu_ps(static_cast<float*>(finish.y) + at, lanes, value);
    } else {
      if constexpr (kResidual) {
        const __m512i residual = _mm512_sub_epi32(load_quantized<kType>(finish.residual, at, lanes),
                                                  _mm512_set1_epi32(finish.residual_zero_point));
        value = _mm512_add_ps(value, _mm512_mul_ps(_mm512_cvtepi32_ps(residual),
                                                   _mm512_set1_ps(finish.residual_multiplier)));
      }
      value = _mm512_min_ps(_mm512_max_ps(value, low), high);
      const __m512i rounded =
          _mm512_add_epi32(_mm512_cvtps_epi32(value), _mm512_set1_epi32(finish.zero_point));
      _mm_mask_storeu_epi8(static_cast<uint8_t*>(finish.y) + at, lanes,
                           _mm512_cvtepi32_epi8(rounded));
    }
  }
}

template <QuantizedType kType, bool kResidual>
void finish_group(const QuantizedFinish& finish, const int32_t* sums, int rows) {
  for (int first = 0; first < finish.lanes; first += 16) {
    const int left = finish.lanes - first;
    const auto lanes = static_cast<__mmask16>(left >= 16 ? 0xffff : (1 << left) - 1);
    finish_lanes<kType, kResidual>(finish, sums, rows, first, lanes);
  }
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
