// Packing a layer of int8 weights into the window layout.
#pragma once

#include <cstdint>
#include <vector>

#include "core/aligned_buffer.h"
#include "core/condensed.h"
#include "core/executor.h"
#include "kernels/quantized_window_ops.h"

namespace fanin {

// The arrays of some neighboring groups, which one thread packs. Cut by the number of weights
// alone, so that a layout does not depend on the number of threads.
struct QuantizedWindowPiece {
  AlignedBuffer<uint8_t> steps;
  AlignedBuffer<uint32_t> displacements;
};

struct QuantizedWindowLayout {
  std::vector<QuantizedWindowPiece> pieces;
  std::vector<QuantizedSteps> groups;  // pointing into the pieces
  std::vector<int32_t> outputs;        // of each lane, -1 for none; empty: lane i has output i
  std::vector<int32_t> weight_sums;    // of each lane, [groups * rows]
  size_t steps = 0;                    // of all groups
  int64_t weights = 0;                 // other than 0
};

// Entries of the value 0 are left out. Throws std::bad_alloc.
QuantizedWindowLayout pack_quantized_windows(const CondensedView& view,
                                             const QuantizedWindowGeometry& geometry,
                                             const Executor& executor);

// Whether the layout holds exactly the weights of the valid `view`.
bool holds_quantized_windows(const QuantizedWindowLayout& layout,
                             const QuantizedWindowGeometry& geometry, const CondensedView& view);

}  // namespace fanin
