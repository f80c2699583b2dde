// Packing a condensed layer into the window layout.
#pragma once

#include <cstdint>
#include <vector>

#include "core/aligned_buffer.h"
#include "core/condensed.h"
#include "core/executor.h"
#include "kernels/window_ops.h"

namespace fanin {

// A weight outside the steps, since a step for it would be nearly empty.
struct WindowRemainder {
  uint32_t column;
  uint32_t row;  // within its group
  float weight;
};

struct WindowGroup {
  const uint8_t* steps;
  const uint16_t* advances;
  size_t step_count;
  const WindowRemainder* remainder;
  size_t remainder_count;
  size_t first_step;  // counted over all groups before it
  bool contiguous;    // the outputs of its rows stand side by side
};

// The arrays of some neighboring groups, which one thread packs.
struct WindowPiece {
  AlignedBuffer<uint8_t> steps;
  AlignedBuffer<uint16_t> advances;
  AlignedBuffer<WindowRemainder> remainder;
};

struct WindowLayout {
  int64_t blocks = 0;  // of x
  std::vector<WindowPiece> pieces;
  std::vector<WindowGroup> groups;  // pointing into the pieces
  std::vector<int32_t> outputs;     // [groups, rows] output of each row; -1 fills up the last group
  int64_t weights = 0;              // true entries
  size_t steps = 0;                 // of all groups
  size_t remainders = 0;            // likewise

  size_t step_bytes(const WindowGeometry& geometry) const {
    return static_cast<size_t>(geometry.step_bytes);
  }
};

// Rows are sorted for the executor's number of threads; no sum depends on it. Throws
// std::bad_alloc.
WindowLayout pack_windows(const CondensedView& view, const WindowGeometry& geometry,
                          const Executor& executor);

// Whether the layout holds exactly the stored rows of the valid `view`.
bool holds_windows(const WindowLayout& layout, const WindowGeometry& geometry,
                   const CondensedView& view);

}  // namespace fanin
