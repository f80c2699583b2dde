// Packing a condensed layer into the panel layout.
#pragma once

#include <cstdint>
#include <vector>

#include "core/aligned_buffer.h"
#include "core/condensed.h"
#include "kernels/panel_ops.h"

namespace fanin {

struct PanelBlock {
  int64_t first_output;
  int64_t outputs;
  size_t bias;  // of its first output; one more element stands for the rows that fill up a group
};

struct PanelLayout {
  int64_t segment_columns = 0;
  int64_t segments = 0;
  std::vector<PanelBlock> blocks;
  std::vector<PanelPart> parts;  // [blocks, segments], pointing into the arrays below
  AlignedBuffer<float> weights;
  AlignedBuffer<uint16_t> offsets;
  std::vector<uint16_t> rows;
  std::vector<PanelRun> runs;
  std::vector<float> bias;
  int64_t true_weights = 0;

  int64_t first_column(int64_t segment) const { return segment * segment_columns; }
};

// Every output has a row, an ablated one without weights, so that outputs leave side by side.
PanelLayout pack_panel(const CondensedView& view, int64_t segment_columns);

}  // namespace fanin
