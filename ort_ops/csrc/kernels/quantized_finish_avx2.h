// The epilogue of quantized layers for AVX2, as quantized_finish_avx512.h.
#pragma once

#include <immintrin.h>

#include "kernels/quantized_finish_ops.h"

namespace fanin {
namespace {

// Eight bytes, or fewer of them and zeros.
inline __m128i load_bytes(const void* from, int count) {
  if (count == 8) return _mm_loadl_epi64(static_cast<const __m128i*>(from));
  uint64_t bytes = 0;
  __builtin_memcpy(&bytes, from, static_cast<size_t>(count));
  return _mm_cvtsi64_si128(static_cast<int64_t>(bytes));
}

// The low byte of each lane.
inline void store_bytes(void* to, __m256i lanes, int count) {
  const __m256i lowest =
      _mm256_shuffle_epi8(lanes, _mm256_broadcastsi128_si256(_mm_setr_epi8(
                                     0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1)));
  const __m128i bytes =
      _mm_unpacklo_epi32(_mm256_castsi256_si128(lowest), _mm256_extracti128_si256(lowest, 1));
  if (count == 8) return _mm_storel_epi64(static_cast<__m128i*>(to), bytes);
  const int64_t eight = _mm_cvtsi128_si64(bytes);
  __builtin_memcpy(to, &eight, static_cast<size_t>(count));
}

// The lanes from number `first` on, at most 8. A copy of the arguments stays in registers, see
// quantized_finish_avx512.h.
template <QuantizedType kType, bool kResidual>
void finish_lanes(const QuantizedFinish finish, const int32_t* sums, int rows, int first,
                  int count) {
  const __m256i lanes =
      _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  const __m256i bias =
      finish.bias ? _mm256_maskload_epi32(finish.bias + first, lanes) : _mm256_setzero_si256();
  const __m256i weights = _mm256_maskload_epi32(finish.weight_sums + first, lanes);
  const __m256 multipliers = _mm256_maskload_ps(finish.multipliers + first, lanes);
  const __m256 float_bias = finish.float_bias ? _mm256_maskload_ps(finish.float_bias + first, lanes)
                                              : _mm256_setzero_ps();
  const __m256 low = _mm256_set1_ps(finish.low), high = _mm256_set1_ps(finish.high);
  const auto start_of = [&](int s) {
    return _mm256_sub_epi32(bias,
                            _mm256_mullo_epi32(weights, _mm256_set1_epi32(finish.zero_points[s])));
  };
  __m256i start = start_of(0);
  for (int s = 0; s < finish.samples; ++s) {
    const int64_t at = s * finish.stride + first;
    if (!finish.common_zero_point) start = start_of(s);
    const __m256i sum = _mm256_add_epi32(
        _mm256_load_si256(reinterpret_cast<const __m256i*>(sums + s * rows + first)), start);
    __m256 multiplier = multipliers;
    if (finish.sample_multipliers)
      multiplier = _mm256_mul_ps(_mm256_set1_ps(finish.sample_multipliers[s]), multipliers);
    __m256 value = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), multiplier);
    if (finish.float_bias) value = _mm256_add_ps(value, float_bias);
    if constexpr (kType == QuantizedType::kFloat32) {
      if constexpr (kResidual)
        value = _mm256_add_ps(
            value, _mm256_maskload_ps(static_cast<const float*>(finish.residual) + at, lanes));
      // NaN stays NaN: the instructions return their second operand.
      value = _mm256_min_ps(high, _mm256_max_ps(low, value));
      _mm256_maskstore_ps(static_cast<float*>(finish.y) + at, lanes, value);
    } else {
      if constexpr (kResidual) {
        const __m128i bytes = load_bytes(static_cast<const uint8_t*>(finish.residual) + at, count);
        const __m256i wide = kType == QuantizedType::kUint8 ? _mm256_cvtepu8_epi32(bytes)
                                                            : _mm256_cvtepi8_epi32(bytes);
        const __m256i residual =
            _mm256_sub_epi32(wide, _mm256_set1_epi32(finish.residual_zero_point));
        value = _mm256_add_ps(value, _mm256_mul_ps(_mm256_cvtepi32_ps(residual),
                                                   _mm256_set1_ps(finish.residual_multiplier)));
      }
      value = _mm256_min_ps(_mm256_max_ps(value, low), high);
      store_bytes(static_cast<uint8_t*>(finish.y) + at,
                  _mm256_add_epi32(_mm256_cvtps_epi32(value), _mm256_set1_epi32(finish.zero_point)),
                  count);
    }
  }
}

template <QuantizedType kType, bool kResidual>
void finish_group(const QuantizedFinish& finish, const int32_t* sums, int rows) {
  for (int first = 0; first < finish.lanes; first += 8)
    finish_lanes<kType, kResidual>(finish, sums, rows, first,
                                   finish.lanes - first < 8 ? finish.lanes - first : 8);
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
