// The part of a convolution in panels that depends on the instruction set. Like panel_ops.h, it is
// included by translation units of wider instruction sets: no function, no std template.
#pragma once

#include "kernels/panel_ops.h"

namespace fanin {

// Pixels of one row of an image that lie side by side in a vector. Lane i, if in `lanes`, holds
// x[offset + i * stride] of a channel. Lanes of no span are zero: pixels outside the image, and
// those past the tile's last pixel.
struct PixelSpan {
  int64_t offset;
  uint32_t lanes;
  uint32_t spread;  // with a stride of 2: bit 2 i for lane i
};

// A column of a segment that some weight reads.
struct ConvColumn {
  uint32_t place;  // in the segment, from 1 on: 0 is the column of zeros
  uint32_t tap;    // of the window, [kernel height, kernel width]
  int64_t channel;
};

// The input of a tile's panel.
struct ConvSource {
  const float* x;  // the group's first channel
  int64_t channel_stride;
  int64_t stride;          // from one pixel of a span to the next
  const PixelSpan* spans;  // [taps][spans_per_tap]
  int64_t spans_per_tap;
  const uint8_t* counts;  // spans of each vector of a column, the same for all taps
};

// A tile consists of strips as wide as the registers allow, each with its own panel and sums, so
// that rows of pixels are written in long runs.
struct ConvStrips {
  int width;             // of a strip
  int count;             // that hold pixels
  int64_t panel_stride;  // floats from one strip's segment to the next
  int64_t sums_stride;   // likewise for sums
};

// The destination of a block's sums: a row of pixels for each output.
struct ConvOutput {
  float* y;               // the tile's first pixel of the block's first output
  const float* residual;  // likewise, or null
  int64_t stride;         // from one output to the next
  uint32_t outputs;       // rows from here on only fill up groups
  int samples;            // pixels of the tile
  float clip_min;
  float clip_max;
  bool gated;  // by what follows, see Gate
  float gate_scale;
  float gate_shift;
  bool fetch;  // y is not in L2
};

struct PanelConvOps {
  int width;  // of the widest strip; the others are its halves down to min_width
  int min_width;
  double microseconds_per_mac;  // of whole strips, for plans
  int lanes;                    // of the vectors that fill makes; strips less wide have that many

  // Writes `count` columns of a segment and the column of zeros, for all strips.
  void (*fill)(const ConvSource& source, const ConvColumn* columns, size_t count,
               const ConvStrips& strips, float* segment);

  // As PanelSum, for all strips.
  void (*sum)(const PanelPart& part, const float* segment, const float* bias,
              const ConvStrips& strips, float* sums);

  // The same for a block's last segment, after which the sums are written to y. Those of rows that
  // only fill up groups go to `sums`.
  void (*finish)(const PanelPart& part, const float* segment, const float* bias,
                 const ConvStrips& strips, float* sums, const ConvOutput& output);
};

}  // namespace fanin
