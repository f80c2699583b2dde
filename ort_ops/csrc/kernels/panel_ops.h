// The part of the panel kernels that depends on the instruction set. Included by translation units
// of wider instruction sets: defines no function and includes no std template, so that nothing
// compiled for them can replace a common symbol.
//
// Elements of panels, weights and sums have 32 bits: floats, or in layers of int8 weights four
// columns of bytes (a quad), their four weights, and an int32 (quantized_panel_ops.h). Engine and
// layout only move them, and call them floats. In layers that compute in bfloat16, a weight is two
// weights of a row (a pair), and an element of the panel two samples.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fanin {

// Rows whose weights are interleaved: each loads its sums once per part and keeps them in
// registers.
constexpr int kPanelGroupRows = 8;

// Offsets into a segment of a panel count eighths of a 256-byte column: an address is
// panel + offset * (tile width / 8), so that the same packed layout serves every tile width.
constexpr int kPanelOffsetsPerColumn = 32;

// Columns of a segment: their offsets fit 16 bits, and the first column is zero.
constexpr int kPanelMaxColumns = 65536 / kPanelOffsetsPerColumn - 1;

// The same for columns of 128 bytes, of bfloat16.
constexpr int kPairOffsetsPerColumn = 16;

// What a weight of the layout stands for: a weight of the layer as float32, two weights of any
// columns as bfloat16, or those of four neighboring columns, one of which is not 0 (int8 layers).
enum class PanelEntry { kFloat, kPair, kQuad };

struct PanelRun {
  uint32_t steps;  // of each of the next groups
  uint32_t groups;
};

// The weights of a block of rows in a segment of columns, row by row of a group interleaved:
// [groups][steps][kPanelGroupRows].
struct PanelPart {
  const uint32_t* weights;  // bits of a float, two bfloat16 or four int8
  const uint16_t* offsets;  // of the column of x that a weight meets, both of a pair; 0 for padding
  const uint16_t* rows;     // [groups][kPanelGroupRows], place of the sums
  const PanelRun* runs;
  size_t run_count;
};

// The destination of a block's sums.
struct PanelOutput {
  float* y;               // the block's first output of the tile's first sample
  const float* residual;  // likewise, or null
  int64_t out_features;   // from one sample to the next
  float clip_min;
  float clip_max;
};

// Samples whose lines are fetched together.
constexpr int kPanelAheadRows = 4;

// The lines that the next fill will read or the next drain write. sum() prefetches them to L2, some
// with each group: they are a few lines of each of many samples, which the CPU's prefetchers do not
// follow. In strips of one line of kPanelAheadRows samples; all samples before the next line.
struct PanelAhead {
  const char* at = nullptr;
  int64_t stride = 0;  // bytes from one sample to the next
  int64_t strips = 0;  // that are left
  int64_t strips_per_group = 0;
  int64_t strips_per_line = 0;
  int64_t strip = 0;  // of this line
};

// sums[row][width] += the part's products. With `bias`, as in a block's first segment, the sums
// start from bias[row] instead of their previous values. Prefetches the lines of `ahead`.
using PanelSum = void(const PanelPart& part, const float* segment, const float* bias, int width,
                      float* sums, PanelAhead& ahead);

struct PanelOps {
  PanelEntry entry;  // kFloat or kPair

  int max_width;  // samples of the widest tile; the others are its halves down to min_width
  int min_width;

  double microseconds_per_weight;  // of the layout, for a sample of the widest tile; for plans

  // Transposes x[samples, columns], whose rows lie in_features apart, to a segment [1 +
  // columns][width] that begins with a zero column. Missing samples repeat the last one. For pairs
  // it rounds to bfloat16.
  void (*fill)(const float* x, int64_t in_features, int samples, int64_t columns, int width,
               float* segment);

  PanelSum* sum;

  // Transposes sums[rows][width] to the output, with the residual and the clip.
  void (*drain)(const float* sums, int64_t rows, int width, int samples, const PanelOutput& output);
};

}  // namespace fanin
