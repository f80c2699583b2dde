// Dynamic quantization, a template over the vectors of an instruction set. Only for translation
// units of one instruction set, which are compiled without contraction to multiply-adds:
// everything has internal linkage.
//
// A division costs three times as much as the rest (16 lanes in 6 cycles on Zen 4). The product
// with the reciprocal of the scale differs from the quotient by less than 3 * 2^-24 * 255.5 <
// 2^-14, so both round to the same integer unless the product is that near to a tie. Vectors with
// such a number are divided, and so is everything if the reciprocal may be no normal number.
#pragma once

#include <cstddef>

#include "kernels/quantize_ops.h"

namespace fanin {
namespace {

// At least this far from its integer, a number is near to a tie.
constexpr float kNearTie = 0.5f - 0x1p-14f;
constexpr float kLeastScale = 0x1p-100f, kLargestScale = 0x1p100f;

// Calls whole(first) for each block of `block` numbers and then part(first, count) for the rest.
template <int kBlock, typename Whole, typename Part>
inline void for_blocks(int64_t count, const Whole& whole, const Part& part) {
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) whole(i);
  if (i < count) part(i, static_cast<int>(count - i));
}

// Vectors: kLanes; Floats, Flags; load, broadcast, min, max, multiply, divide; no_flags,
// flag_nan(flags, a, b), flagged(flags); lowest, highest (of a vector's numbers);
// farthest_at_least(four vectors, bound): whether a number is that far from its integer;
// store(four vectors, zero point, to): rounds, adds and saturates.
template <typename Vectors>
QuantizeRange range_of(const float* x, int64_t count) {
  constexpr int kLanes = Vectors::kLanes, kBlock = 4 * kLanes;
  using Floats = typename Vectors::Floats;
  const Floats zero = Vectors::broadcast(0.0f);
  Floats low[4] = {zero, zero, zero, zero}, high[4] = {zero, zero, zero, zero};
  auto nan = Vectors::no_flags();
  const auto take = [&](const float* from) {
    Floats four[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      four[v] = Vectors::load(from + v * kLanes);
      low[v] = Vectors::min(low[v], four[v]);
      high[v] = Vectors::max(high[v], four[v]);
    }
    nan = Vectors::flag_nan(nan, four[0], four[1]);
    nan = Vectors::flag_nan(nan, four[2], four[3]);
  };
  for_blocks<kBlock>(
      count, [&](int64_t i) { take(x + i); },
      [&](int64_t i, int rest) {
        float padded[kBlock] = {};  // with zeros, which change no range
        __builtin_memcpy(padded, x + i, static_cast<size_t>(rest) * sizeof(float));
        take(padded);
      });
  const float lowest =
      Vectors::lowest(Vectors::min(Vectors::min(low[0], low[1]), Vectors::min(low[2], low[3])));
  const float highest = Vectors::highest(
      Vectors::max(Vectors::max(high[0], high[1]), Vectors::max(high[2], high[3])));
  const bool finite = lowest >= -__FLT_MAX__ && highest <= __FLT_MAX__ && !Vectors::flagged(nan);
  return {lowest, highest, finite};
}

template <typename Vectors>
void quantize_numbers(const float* x, int64_t count, const QuantizeScale& by, uint8_t* to) {
  constexpr int kLanes = Vectors::kLanes, kBlock = 4 * kLanes;
  using Floats = typename Vectors::Floats;
  const bool multiplies = by.scale >= kLeastScale && by.scale <= kLargestScale;
  const Floats scale = Vectors::broadcast(by.scale);
  const Floats reciprocal = Vectors::broadcast(1.0f / by.scale);
  const auto zero_point = Vectors::zero_points(by.zero_point);
  const auto put = [&](const float* from, uint8_t* bytes) {
    Floats quotients[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v)
      quotients[v] = Vectors::multiply(Vectors::load(from + v * kLanes), reciprocal);
    if (__builtin_expect(!multiplies || Vectors::farthest_at_least(quotients, kNearTie), 0))
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v)
        quotients[v] = Vectors::divide(Vectors::load(from + v * kLanes), scale);
    Vectors::store(quotients, zero_point, bytes);
  };
  for_blocks<kBlock>(
      count, [&](int64_t i) { put(x + i, to + i); },
      [&](int64_t i, int rest) {
        float padded[kBlock] = {};
        uint8_t bytes[kBlock];
        __builtin_memcpy(padded, x + i, static_cast<size_t>(rest) * sizeof(float));
        put(padded, bytes);
        __builtin_memcpy(to + i, bytes, static_cast<size_t>(rest));
      });
}

}  // namespace
}  // namespace fanin
