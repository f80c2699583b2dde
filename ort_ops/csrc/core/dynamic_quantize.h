// Quantizing float32 activations to uint8 when they arrive, as ONNX's DynamicQuantizeLinear does.
#pragma once

#include <cstdint>

#include "core/cpu_features.h"
#include "core/executor.h"

namespace fanin {

struct DynamicQuantization {
  uint8_t* values;       // [rows, columns]
  float* scales;         // [rows]; NaN for a row with a NaN or an infinity
  int32_t* zero_points;  // [rows]
};

// Quantizes x, [rows, columns], with a scale for each row, or for all if not `per_row`:
//   low, high  = min(0, min x), max(0, max x)
//   scale      = (high - low) / 255, 1 if that is 0
//   zero point = round_half_even(saturate(-low / scale))
//   value      = saturate(round_half_even(x / scale) + zero point)
// Each operation is rounded to float32. The result is the same for any instruction set and any
// number of threads.
void dynamic_quantize(const float* x, int64_t rows, int64_t columns, bool per_row,
                      const DynamicQuantization& to, Isa isa, const Executor& executor);

}  // namespace fanin
