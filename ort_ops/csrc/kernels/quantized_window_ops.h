// The part of the window kernels of int8 layers that depends on the instruction set. Included by
// translation units of wider instruction sets, so it defines no function and includes no std
// template.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/quantized_finish_ops.h"

namespace fanin {

// A group of rows walks over the columns of x with a window, which never moves back. An index looks
// up a unit of 1, 2 or 4 neighboring columns. A step of the layout has the next units of each row
// that hold a weight and are in the window, for up to four weights:
//   [16 rows x 4 index bytes], for each 16 * unit rows, then [16 rows x 4 weights], for each 16
//   rows
// The index of a unit is its number in the window. Weights that a row lacks are 0, and so are
// indices: whatever is looked up there is multiplied by 0.
struct QuantizedWindowGeometry {
  int rows;      // of a group, a multiple of 16 * unit
  int columns;   // of the window
  int grain;     // a window starts at a multiple of it, or at the last columns
  int unit = 1;  // columns

  constexpr int units() const { return 4 / unit; }  // of a row in a step
  constexpr int step_bytes() const { return (4 + units()) * rows; }
  constexpr int first_weight() const { return units() * rows; }

  // Where the index of a row's unit is. An index vector has those of 16 rows in the lowest bytes of
  // its elements, of the next 16 in the bytes above, and so on.
  constexpr int index_byte(int row, int number) const {
    return row / (16 * unit) * 64 + (row % 16 * units() + number) * unit + row % (16 * unit) / 16;
  }
};

// The steps of one group.
struct QuantizedSteps {
  const uint8_t* data;
  const uint32_t* displacements;  // [count] bytes from the start of a sample to the window
  size_t count;
};

// Most samples that one call of `sum` takes.
inline constexpr int kQuantizedTile = 8;

struct QuantizedWindowOps {
  QuantizedWindowGeometry geometry;

  // sums[s * rows + r] of the products with samples[s], without zero points, for s < count. Samples
  // are of x_type and may lie anywhere; `columns` bytes can be read at each displacement.
  void (*sum)(const QuantizedSteps& steps, const uint8_t* const* samples, int count, int32_t* sums);
  int max_samples;  // that one call of `sum` takes, kQuantizedTile at most

  // Finishes sums[s * rows + lane].
  void (*finish)(const QuantizedFinish& finish, const int32_t* sums);

  double microseconds_per_step;  // of max_samples, for plans

  QuantizedType x_type = QuantizedType::kUint8;  // or kInt8

  // What `sum` and `finish` do one after the other, for any number of samples, without writing the
  // sums to memory; null if the kernel cannot. Only for finishes that are plain. Returns false, and
  // has done nothing, for multipliers whose products may leave int32. Fetches `next`, the steps
  // that will be needed then, to the caches.
  bool (*run)(const QuantizedSteps& steps, const uint8_t* const* samples,
              const QuantizedFinish& finish, const QuantizedSteps& next) = nullptr;
};

}  // namespace fanin
