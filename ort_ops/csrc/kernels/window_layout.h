// Packing a condensed layer into the window layout.
#pragma once

#include <cstdint>
#include <vector>

#include "core/aligned_buffer.h"
#include "core/condensed.h"
#include "kernels/window_ops.h"

namespace fanin {

// A weight that stands outside the steps, since a step for it would be nearly empty.
struct WindowRemainder {
  uint32_t column;
  uint32_t row;  // within its group
  float weight;
};

struct WindowGroup {
  size_t step_begin;
  size_t step_count;
  size_t remainder_begin;
  size_t remainder_count;
  bool contiguous;  // the outputs of its rows stand side by side
};

struct WindowLayout {
  int64_t blocks = 0;  // of x
  std::vector<WindowGroup> groups;
  AlignedBuffer<uint8_t> steps;
  AlignedBuffer<uint16_t> advances;
  std::vector<WindowRemainder> remainder;
  std::vector<int32_t> outputs;  // [groups, rows] output of each row; -1 fills up the last group
  int64_t weights = 0;           // true entries

  size_t step_bytes(const WindowGeometry& geometry) const {
    return static_cast<size_t>(geometry.step_bytes);
  }
};

WindowLayout pack_windows(const CondensedView& view, const WindowGeometry& geometry);

}  // namespace fanin
