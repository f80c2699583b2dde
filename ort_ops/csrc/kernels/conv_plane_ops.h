// The part of a convolution over few channels that an instruction set decides. As panel_ops.h, it
// is for translation units of wider instruction sets too: no function, no std template.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fanin {

// Rows of one channel on their way into planes. With a step of 2, pixels 0, 2, ... of a row go to
// `to`, pixels 1, 3, ... to `odd`.
struct PlaneRows {
  const float* from;
  int64_t from_stride;
  int64_t rows;
  int64_t width;
  float* to;
  float* odd;
  int64_t to_stride;
};

// The entries of one filter.
struct PlaneTaps {
  const float* weights;
  const int32_t* places;   // in the window
  const int64_t* offsets;  // by place: floats from an output pixel to the pixel of a plane it needs
  size_t count;
};

// Where the output pixels of one filter go.
struct PlaneOutput {
  float* y;
  const float* residual;  // or null
  int64_t rows;
  int64_t width;
  int64_t pitch;  // of the planes: a multiple of `lanes`, at least `width`
  float clip_min;
  float clip_max;
  bool gated;
  float gate_scale;
  float gate_shift;
};

struct ConvPlaneOps {
  int lanes;

  void (*copy)(const PlaneRows& rows);
  void (*split)(const PlaneRows& rows);

  // Writes the rows of one filter. Reads up to two vectors behind the last pixel that they need.
  void (*sum)(const float* planes, const PlaneTaps& taps, float bias, const PlaneOutput& output);

  // The same for one row of pixels that lie anywhere; reads no other pixels.
  void (*sum_in_place)(const float* x, const PlaneTaps& taps, float bias,
                       const PlaneOutput& output);
};

}  // namespace fanin
