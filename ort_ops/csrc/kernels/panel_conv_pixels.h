// The input pixels that a tile of output pixels reads.
#pragma once

#include <cstdint>

#include "core/conv_geometry.h"
#include "kernels/panel_conv_ops.h"
#include "kernels/panel_engine.h"

namespace fanin {

// The sizes of one run. Output pixels are numbered consecutively through all images and rows.
class ConvPixels {
 public:
  ConvPixels(const ConvGeometry& geometry, const ConvInput& input);

  int64_t pixels() const { return height_ * width_; }  // of an output channel
  int64_t channel_size() const { return input_.height * input_.width; }
  int64_t stride() const { return geometry_.strides[1]; }

  // Memory that build() needs for a tile of up to `width` pixels, in vectors of `lanes`.
  size_t state_bytes(int width, int lanes) const;

  // Finds the spans of a tile, and lays them out in `state` for source().
  void build(const PanelTile& tile, int lanes, uint8_t* state) const;

  // The spans in `state`, for a group whose first channel in the first image is x.
  ConvSource source(const float* x, const uint8_t* state) const;

 private:
  // Output pixels of one row and one vector.
  struct Run {
    int64_t image;   // offset of its first channel
    int64_t row;     // input row of the window's first
    int64_t column;  // input column of lane 0 and the window's first
    int first;       // lane
    int end;
  };

  int64_t max_runs(int width, int lanes) const;
  Run* find_runs(const PanelTile& tile, int lanes, uint8_t* counts, Run* runs) const;
  PixelSpan span(const Run& run, int64_t row, int64_t column) const;

  // 1 x 1 without strides and pads: treats images as single rows.
  ConvGeometry geometry_;
  ConvInput input_;
  int64_t height_;  // of the output
  int64_t width_;
};

}  // namespace fanin
