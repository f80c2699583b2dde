// The part of the window kernels of int8 layers that depends on the instruction set. Included by
// translation units of wider instruction sets, so it defines no function and includes no std
// template.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/value_type.h"

namespace fanin {

// A group of rows walks over the columns of x with a window, which never moves back. A step of the
// layout has up to four weights of each row whose columns are in the window:
//   [16 rows x 4 index bytes], for each 16 rows, then [16 rows x 4 weights], for each 16 rows
// The index of a weight is its column in the window. Without a weight, both bytes are 0: whatever
// is looked up there is multiplied by 0.
struct QuantizedWindowGeometry {
  int rows;     // of a group, a multiple of 16
  int columns;  // of the window
  int grain;    // a window starts at a multiple of it, or at the last columns

  constexpr int step_bytes() const { return 8 * rows; }
};

// The steps of one group.
struct QuantizedSteps {
  const uint8_t* data;
  const uint32_t* displacements;  // [count] bytes from the start of a sample to the window
  size_t count;
};

// Most samples that one call of `sum` takes.
inline constexpr int kQuantizedTile = 8;

// What becomes of the sums of a group in a tile of samples, see QuantizedEpilogue. A lane is a row
// of the group.
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
  const int32_t* zero_points;       // [samples], of x as uint8
  bool common_zero_point;           // all zero points are the first one
  int32_t zero_point;               // of y
  int32_t residual_zero_point;
  float residual_multiplier;
  float low;  // FinishBounds
  float high;
};

struct QuantizedWindowOps {
  QuantizedWindowGeometry geometry;

  // sums[s * rows + r] of the products with samples[s], without zero points, for s < count. Samples
  // are uint8 and may lie anywhere; `columns` bytes can be read at each displacement.
  void (*sum)(const QuantizedSteps& steps, const uint8_t* const* samples, int count, int32_t* sums);
  int max_samples;  // that one call of `sum` takes, kQuantizedTile at most

  // Finishes sums[s * rows + lane].
  void (*finish)(const QuantizedFinish& finish, const int32_t* sums);

  double microseconds_per_step;  // of max_samples, for plans
};

}  // namespace fanin
