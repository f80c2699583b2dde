// The part of a depthwise convolution that depends on the instruction set. Like panel_ops.h, it is
// included by translation units of wider instruction sets: no function, no std template.
#pragma once

#include "kernels/panel_ops.h"

namespace fanin {

// Pixels of one output row of `lanes` channels.
struct DepthwiseRow {
  const float* const* taps;  // by tap: the pixel that the first output pixel needs, [lanes]
  const float* weights;      // [taps][lanes]
  const float* bias;         // [lanes]
  int64_t tap_count;
  int64_t step;  // floats from what one output pixel needs to what the next one does
  int64_t pixels;
  float* sums;  // [pixels][lanes]
  float clip_min;
  float clip_max;
  bool gated;
  float gate_scale;
  float gate_shift;
};

struct DepthwiseConvOps {
  int lanes;
  const PanelOps& panel;  // whose fill and drain transpose, with tiles of `lanes`
  void (*sum)(const DepthwiseRow& row);
};

}  // namespace fanin
