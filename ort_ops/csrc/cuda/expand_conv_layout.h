// The layout of a convolution for the expand kernel: its tiles, and the position of each column.
#pragma once

#include <cstdint>

#include "core/condensed.h"
#include "core/conv_geometry.h"
#include "cuda/expand_layout.h"
#include "cuda/layout.h"
#include "cuda/pixel_samples.h"

namespace fanin::cuda {

// Sizes of images, pads, strides and windows have at most as many pixels along an axis, so that 32
// bits hold every position.
inline constexpr int64_t kMostExpandPixels = int64_t{1} << 28;

struct ExpandConvLayout {
  ExpandLayout tiles;
  ConvGeometry geometry;
  int64_t columns = 0;  // offset in the blob

  // What depends on the layer alone; `base` is the address of the blob.
  ExpandConvArgs arguments(const void* base) const;
};

// The geometry's pads, strides and window must be within kMostExpandPixels. Throws as pack_expand.
ExpandConvLayout pack_expand_conv(const CondensedView& view, const ConvGeometry& geometry,
                                  ValueType activations, Blob& blob);

}  // namespace fanin::cuda
