// Packing a condensed layer into the panel layout.
#pragma once

#include <cstdint>
#include <vector>

#include "core/aligned_buffer.h"
#include "core/condensed.h"
#include "core/executor.h"
#include "kernels/gemm_kernel.h"
#include "kernels/panel_ops.h"

namespace fanin {

struct PanelBlock {
  int64_t first_output;
  int64_t outputs;
  size_t bias;  // of its first output; one more element stands for the rows that fill up a group
  size_t padded_weights = 0;
  size_t padded_rows = 0;  // of all segments, with those that fill up groups

  // Multiply-adds of one sample, where loading and storing the sums of a row counts as `row` ones.
  double multiplications(double row) const {
    return static_cast<double>(padded_weights) + row * static_cast<double>(padded_rows);
  }
};

// The arrays of some neighboring blocks, which one thread packs.
struct PanelPiece {
  AlignedBuffer<uint32_t> weights;
  AlignedBuffer<uint16_t> offsets;
  AlignedBuffer<uint16_t> rows;
  AlignedBuffer<PanelRun> runs;
};

struct PanelLayout {
  PanelEntry entry = PanelEntry::kFloat;
  int64_t segment_columns = 0;
  int64_t segments = 0;
  int64_t block_rows = 0;  // outputs of the largest block
  std::vector<PanelBlock> blocks;
  std::vector<PanelPiece> pieces;
  std::vector<PanelPart> parts;  // [blocks, segments], pointing into the pieces
  std::vector<float> bias;       // zeros in int8 layers
  int64_t true_weights = 0;      // of the layer; those of int8 that are 0 do not count in quads
  size_t padded_weights = 0;     // in all pieces, two for a pair, four for a quad

  int64_t first_column(int64_t segment) const { return segment * segment_columns; }
};

// How outputs are written: from the sums of a whole block, or each row from the registers of its
// last part, in which every row must then appear.
enum class PanelEnd { kSums, kRegisters };

// Columns of x, or quads of them.
int64_t panel_columns(const CondensedView& view, PanelEntry entry);

// Floats of a column of the panel for so many samples.
size_t column_floats(PanelEntry entry, int width);

// Columns of a segment in which a row has about `steps` weights or quads, from `least` to `most`.
int64_t segment_columns(const CondensedView& view, PanelEntry entry, double steps, int64_t least,
                        int64_t most);

// Every output has a row, an ablated one without weights, so that outputs are written side by side.
// Segments have at most `segment_columns` columns; of int8 weights as floats, whole quads. Blocks
// are cut for the executor's number of threads. Throws std::bad_alloc.
PanelLayout pack_panel(const CondensedView& view, PanelEntry entry, int64_t segment_columns,
                       PanelEnd end, const Executor& executor);

LayoutInfo panel_info(const PanelLayout& layout);

// Whether the layout holds exactly the stored rows and the bias of the valid `view`.
bool holds_panel(const PanelLayout& layout, const CondensedView& view);

}  // namespace fanin
