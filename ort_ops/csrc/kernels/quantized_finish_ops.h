// What becomes of sums of int8 layers. Included by translation units of wider instruction sets, so
// it defines no function and includes no std template.
#pragma once

#include <cstdint>

#include "core/value_type.h"

namespace fanin {

// What becomes of the sums of some rows in a tile of samples, see QuantizedEpilogue. A lane is a
// row.
struct QuantizedFinish {
  QuantizedType type;  // of y and residual
  int samples;
  int lanes;                        // that have an output; arrays of lanes have no more elements
  int64_t stride;                   // elements of y and of residual from one sample to the next
  void* y;                          // of the first sample and lane
  const void* residual;             // likewise, or null
  const int32_t* weight_sums;       // [lanes]
  const float* multipliers;         // [lanes]
  const int32_t* bias;              // [lanes], or null
  const float* float_bias;          // [lanes], or null
  const float* sample_multipliers;  // [samples], or null
  const int32_t* zero_points;       // [samples], of x as the kernel has it
  bool common_zero_point;           // all zero points are the first one
  int32_t zero_point;               // of y
  int32_t residual_zero_point;
  float residual_multiplier;
  float low;  // FinishBounds
  float high;

  // What most layers have: bytes, and the same arithmetic for all samples.
  bool plain() const {
    return type != QuantizedType::kFloat32 && common_zero_point && !sample_multipliers &&
           !float_bias;
  }
};

}  // namespace fanin
