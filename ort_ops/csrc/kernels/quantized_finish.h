// The epilogue of quantized layers, one output at a time. Sources that include it are compiled
// without contraction to multiply-adds, since every operation is rounded on its own.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/quantized_gemm.h"

namespace fanin {

// The bounds of a value before it is rounded: the clip and, for uint8 and int8, the limits of the
// type. They precede the conversion to an integer, which float32 values can leave.
struct FinishBounds {
  float low;
  float high;
};

inline FinishBounds finish_bounds(const QuantizedEpilogue& epilogue) {
  if (epilogue.type == QuantizedType::kFloat32) return {epilogue.clip_min, epilogue.clip_max};
  const int32_t least = epilogue.type == QuantizedType::kUint8 ? 0 : -128;
  const auto low = static_cast<float>(least - epilogue.zero_point);
  const float high = low + 255.0f;
  return {std::clamp(epilogue.clip_min, low, high), std::clamp(epilogue.clip_max, low, high)};
}

// What is added to the zero point of x where a kernel reads it as the other type, as x + 128 or
// x - 128.
inline int32_t zero_point_shift(QuantizedType x, QuantizedType read_as) {
  if (x == read_as) return 0;
  return x == QuantizedType::kInt8 ? 128 : -128;
}

// int32 arithmetic that wraps.
inline int32_t wrapping_add(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}

// Finishes a sum of products of output o, without the bias, and writes y at the element `at`.
inline void finish_at(const QuantizedEpilogue& epilogue, const FinishBounds& bounds,
                      int32_t products, float multiplier, int64_t o, int64_t at, void* y) {
  const int32_t sum = epilogue.bias ? wrapping_add(epilogue.bias[o], products) : products;
  float value = static_cast<float>(sum) * multiplier;
  if (epilogue.float_bias) value += epilogue.float_bias[o];
  if (epilogue.residual) {
    if (epilogue.type == QuantizedType::kFloat32) {
      value += static_cast<const float*>(epilogue.residual)[at];
    } else {
      const int32_t quantized = epilogue.type == QuantizedType::kUint8
                                    ? static_cast<const uint8_t*>(epilogue.residual)[at]
                                    : static_cast<const int8_t*>(epilogue.residual)[at];
      value += static_cast<float>(quantized - epilogue.residual_zero_point) *
               epilogue.residual_multiplier;
    }
  }
  if (epilogue.type == QuantizedType::kFloat32) {
    // NaN stays NaN.
    value = value < bounds.low ? bounds.low : value;
    static_cast<float*>(y)[at] = value > bounds.high ? bounds.high : value;
    return;
  }
  // NaN, which only invalid multipliers give, becomes the lower bound.
  value = value > bounds.low ? value : bounds.low;
  value = value < bounds.high ? value : bounds.high;
  // Rounds to the nearest even integer: from 2^23 on, float32 has no fraction.
  constexpr float kNoFraction = 0x1.8p23f;
  const auto rounded = static_cast<int32_t>((value + kNoFraction) - kNoFraction);
  static_cast<uint8_t*>(y)[at] = static_cast<uint8_t>(rounded + epilogue.zero_point);
}

// The same for output o in sample b.
inline void finish_output(const QuantizedEpilogue& epilogue, const FinishBounds& bounds,
                          int32_t products, int64_t b, int64_t o, int64_t out_features, void* y) {
  const float multiplier = epilogue.sample_multipliers
                               ? epilogue.sample_multipliers[b] * epilogue.multipliers[o]
                               : epilogue.multipliers[o];
  finish_at(epilogue, bounds, products, multiplier, o, b * out_features + o, y);
}

// x of one sample, as integers less the zero point.
template <typename X>
struct QuantizedSample {
  const X* x;
  int32_t zero_point;

  int32_t operator[](int64_t column) const { return x[column] - zero_point; }
};

// Calls body(sample) with the QuantizedSample of sample b.
template <typename Body>
void visit_sample(const QuantizedInput& x, int64_t b, int64_t in_features, const Body& body) {
  const int32_t zero_point = x.zero_points ? x.zero_points[b] : x.zero_point;
  if (x.type == QuantizedType::kInt8)
    body(QuantizedSample<int8_t>{static_cast<const int8_t*>(x.data) + b * in_features, zero_point});
  else
    body(QuantizedSample<uint8_t>{static_cast<const uint8_t*>(x.data) + b * in_features,
                                  zero_point});
}

}  // namespace fanin
