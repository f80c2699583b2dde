// The part of a direct convolution that depends on the instruction set. Like panel_ops.h, it is
// included by translation units of wider instruction sets: no function, no std template.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fanin {

// Rows of one channel that are copied to its padded copy. With a stride of 2, pixels 0, 2, ... of a
// row go to `to`, pixels 1, 3, ... to `odd`.
struct PaddedRows {
  const float* from;
  int64_t from_stride;
  int64_t rows;
  int64_t width;
  float* to;
  float* odd;
  int64_t to_stride;
};

// The weights of one filter.
struct FilterTaps {
  const float* weights;
  const int32_t* places;   // in the window
  const int64_t* offsets;  // by place: floats from an output pixel to the one that it reads
  size_t count;
};

// The destination of the output pixels of one filter.
struct FilterOutput {
  float* y;
  const float* residual;  // or null
  int64_t rows;
  int64_t width;
  int64_t pitch;  // of the padded channels: a multiple of `lanes`, at least `width`
  float clip_min;
  float clip_max;
  bool gated;
  float gate_scale;
  float gate_shift;
};

struct DirectConvOps {
  int lanes;

  void (*copy)(const PaddedRows& rows);
  void (*split)(const PaddedRows& rows);

  // Writes the rows of one filter. Reads up to two vectors past the last pixel that they need.
  void (*sum)(const float* padded, const FilterTaps& taps, float bias, const FilterOutput& output);

  // The same for one row of pixels at any alignment; reads no other pixels.
  void (*sum_in_place)(const float* x, const FilterTaps& taps, float bias,
                       const FilterOutput& output);
};

}  // namespace fanin
