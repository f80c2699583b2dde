// Sums and outputs of a window kernel of int8 layers in one go: the sums of a tile never leave the
// registers. For plain finishes (quantized_finish_ops.h). Only for translation units of one
// instruction set, which are compiled without contraction to multiply-adds.
#pragma once

#include "kernels/quantized_window_core.h"

namespace fanin {
namespace {

// What is the same for all samples of a group of 32 rows.
struct GroupConstants {
  __m512i start[2];  // of the sums
  __m512 multipliers[2];
  __m512i zero_point;  // 16 bits
  __m512i least;       // 8 bits
  __m512i greatest;    // likewise
  __m512i residual_zero_point;
  __m512 residual_multiplier;
  __mmask32 lanes;

  explicit GroupConstants(const QuantizedFinish& finish)
      : zero_point(_mm512_set1_epi16(static_cast<int16_t>(finish.zero_point))),
        least(bound(finish.low, finish)),
        greatest(bound(finish.high, finish)),
        residual_zero_point(_mm512_set1_epi32(finish.residual_zero_point)),
        residual_multiplier(_mm512_set1_ps(finish.residual_multiplier)),
        lanes(finish.lanes >= 32 ? ~__mmask32{0} : (__mmask32{1} << finish.lanes) - 1) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const auto part = static_cast<__mmask16>(lanes >> (16 * v));
      const __m512i products = _mm512_mullo_epi32(_mm512_loadu_si512(finish.weight_sums + 16 * v),
                                                  _mm512_set1_epi32(finish.zero_points[0]));
      start[v] = finish.bias ? _mm512_maskz_loadu_epi32(part, finish.bias + 16 * v)
                             : _mm512_setzero_si512();
      start[v] = _mm512_sub_epi32(start[v], products);
      multipliers[v] = _mm512_maskz_loadu_ps(part, finish.multipliers + 16 * v);
    }
  }

  // Whether every sum, scaled and with a residual, is less than 2^31.
  bool fits_integers(const QuantizedFinish& finish) const {
    const __m512 half = _mm512_set1_ps(0.5f);
    return _mm512_cmp_ps_mask(multipliers[0], half, _CMP_NLE_UQ) == 0 &&
           _mm512_cmp_ps_mask(multipliers[1], half, _CMP_NLE_UQ) == 0 &&
           (!finish.residual || finish.residual_multiplier <= 0x1p21f);
  }

 private:
  static __m512i bound(float value, const QuantizedFinish& finish) {
    const int rounded = _mm_cvtss_si32(_mm_set_ss(value));
    return _mm512_set1_epi8(static_cast<int8_t>(rounded + finish.zero_point));
  }
};

template <bool kFull>
void store_lanes(uint8_t* to, __mmask32 lanes, __m256i outputs) {
  if constexpr (kFull)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), outputs);
  else
    _mm256_mask_storeu_epi8(to, lanes, outputs);
}

template <QuantizedType kType>
__m512i widen(__m128i bytes) {
  return kType == QuantizedType::kUint8 ? _mm512_cvtepu8_epi32(bytes) : _mm512_cvtepi8_epi32(bytes);
}

// Two sums of each of 16 lanes become 16 bits of each lane: four of the first vector, four of the
// second one, and so on. Bounds follow, since rounding and saturation are monotonic.
template <QuantizedType kType, bool kResidual, bool kFull>
__m512i narrow(const GroupConstants& group, const __m512i (&sums)[2], const uint8_t* residual) {
  __m512i rounded[2];
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) {
    __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[v]), group.multipliers[v]);
    if constexpr (kResidual) {
      __m128i bytes;
      if constexpr (kFull)
        bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(residual + 16 * v));
      else
        bytes = _mm_maskz_loadu_epi8(static_cast<__mmask16>(group.lanes >> (16 * v)),
                                     residual + 16 * v);
      const __m512i added = _mm512_sub_epi32(widen<kType>(bytes), group.residual_zero_point);
      value =
          _mm512_add_ps(value, _mm512_mul_ps(_mm512_cvtepi32_ps(added), group.residual_multiplier));
    }
    rounded[v] = _mm512_cvtps_epi32(value);
  }
  return _mm512_adds_epi16(_mm512_packs_epi32(rounded[0], rounded[1]), group.zero_point);
}

// kSamples samples, or `left` of them, if those are fewer: the last one is repeated, and not
// stored.
template <int kColumns, int kSamples, bool kWhole, QuantizedType kType, bool kResidual, bool kFull>
void run_tile(const QuantizedSteps& steps, const uint8_t* const* samples, int left,
              const GroupConstants& constants, uintptr_t ahead, const uint8_t* residual, uint8_t* y,
              int64_t stride) {
  const int count = kWhole ? kSamples : left;
  __m512i sum[kSamples][2];
  const uint8_t* x[kSamples];
#pragma GCC unroll 8
  for (int s = 0; s < kSamples; ++s) {
    x[s] = samples[s < count ? s : count - 1];
    sum[s][0] = constants.start[0];
    sum[s][1] = constants.start[1];
  }
  add_steps<32, kColumns, kSamples, kSamples == 8, false>(steps, x, sum, ahead);
  // In registers from here on, and not during the steps, which need all of them.
  const GroupConstants* group = &constants;
  asm volatile("" : "+r"(group));
  constexpr bool kUnsigned = kType == QuantizedType::kUint8;
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
#pragma GCC unroll 4
  for (int s = 0; s < kSamples; s += 2) {
    if (s >= count) break;
    const bool two = s + 1 < count;
    const int64_t at = s * stride, next = two ? at + stride : at;
    const __m512i a =
        narrow<kType, kResidual, kFull>(*group, sum[s], kResidual ? residual + at : nullptr);
    const __m512i b =
        narrow<kType, kResidual, kFull>(*group, sum[s + 1], kResidual ? residual + next : nullptr);
    __m512i bytes = kUnsigned ? _mm512_packus_epi16(a, b) : _mm512_packs_epi16(a, b);
    bytes = kUnsigned ? _mm512_max_epu8(bytes, group->least) : _mm512_max_epi8(bytes, group->least);
    bytes = kUnsigned ? _mm512_min_epu8(bytes, group->greatest)
                      : _mm512_min_epi8(bytes, group->greatest);
    bytes = _mm512_permutexvar_epi32(order, bytes);
    store_lanes<kFull>(y + at, group->lanes, _mm512_castsi512_si256(bytes));
    if (two) store_lanes<kFull>(y + next, group->lanes, _mm512_extracti64x4_epi64(bytes, 1));
  }
}

template <int kColumns, QuantizedType kType, bool kResidual, bool kFull>
bool run_tiles(const QuantizedSteps& steps, const uint8_t* const* samples,
               const QuantizedFinish& finish, const QuantizedSteps& next) {
  const GroupConstants constants(finish);
  if (!constants.fits_integers(finish)) return false;
  const auto* residual = static_cast<const uint8_t*>(finish.residual);
  auto* y = static_cast<uint8_t*>(finish.y);
  const int64_t stride = finish.stride;
  // Each tile fetches one of the four lines of the next group's steps.
  const auto ahead =
      reinterpret_cast<uintptr_t>(next.data) - reinterpret_cast<uintptr_t>(steps.data);
  for (int s = 0; s < finish.samples; s += 8) {
    const int left = finish.samples - s;
    const auto run = left >= 8  ? run_tile<kColumns, 8, true, kType, kResidual, kFull>
                     : left > 6 ? run_tile<kColumns, 8, false, kType, kResidual, kFull>
                     : left > 4 ? run_tile<kColumns, 6, false, kType, kResidual, kFull>
                     : left > 2 ? run_tile<kColumns, 4, false, kType, kResidual, kFull>
                                : run_tile<kColumns, 2, false, kType, kResidual, kFull>;
    run(steps, samples + s, left, constants, ahead + static_cast<uintptr_t>(s % 32 * 8),
        kResidual ? residual + s * stride : nullptr, y + s * stride, stride);
  }
  return true;
}

template <int kColumns, QuantizedType kType>
bool run_typed(const QuantizedSteps& steps, const uint8_t* const* samples,
               const QuantizedFinish& finish, const QuantizedSteps& next) {
  if (finish.lanes >= 32)
    return finish.residual ? run_tiles<kColumns, kType, true, true>(steps, samples, finish, next)
                           : run_tiles<kColumns, kType, false, true>(steps, samples, finish, next);
  return finish.residual ? run_tiles<kColumns, kType, true, false>(steps, samples, finish, next)
                         : run_tiles<kColumns, kType, false, false>(steps, samples, finish, next);
}

// See QuantizedWindowOps::run.
template <int kColumns>
bool run_group(const QuantizedSteps& steps, const uint8_t* const* samples,
               const QuantizedFinish& finish, const QuantizedSteps& next) {
  if (finish.type == QuantizedType::kUint8)
    return run_typed<kColumns, QuantizedType::kUint8>(steps, samples, finish, next);
  return run_typed<kColumns, QuantizedType::kInt8>(steps, samples, finish, next);
}

}  // namespace
}  // namespace fanin
