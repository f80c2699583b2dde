// The attributes of a convolution and the sizes that follow from them. Everything is 2-d: the
// height of a 1-d convolution is 1.
#pragma once

#include <cstdint>
#include <string>

#include "core/condensed.h"

namespace fanin {

struct ConvInput {
  int64_t batch = 1;
  int64_t height = 1;
  int64_t width = 1;
};

struct ConvGeometry {
  int64_t in_channels = 1;
  int64_t out_channels = 1;
  int64_t group = 1;
  int64_t kernel[2] = {1, 1};      // height, width
  int64_t strides[2] = {1, 1};     // likewise
  int64_t pads[4] = {0, 0, 0, 0};  // top, left, bottom, right
  int64_t dilations[2] = {1, 1};

  int64_t group_inputs() const { return in_channels / group; }
  int64_t group_outputs() const { return out_channels / group; }

  // Places of the window in one channel.
  int64_t taps() const { return kernel[0] * kernel[1]; }

  // Of axis 0 (height) or 1 (width), as in ONNX; 0 where the window does not fit.
  int64_t output_size(int axis, int64_t input) const {
    const int64_t window = dilations[axis] * (kernel[axis] - 1) + 1;
    const int64_t padded = input + pads[axis] + pads[axis + 2];
    return padded < window ? 0 : (padded - window) / strides[axis] + 1;
  }

  // 1 x 1 without strides and pads: an output pixel reads the input pixel at its own place.
  bool is_pointwise() const;

  bool operator==(const ConvGeometry& other) const;
};

// One place of the window: the channel counts inside its group, row and column are offsets of input
// pixels, before the padding is taken off.
struct ConvTap {
  int64_t channel;
  int64_t row;
  int64_t column;
};

// The place that an index of the condensed format names, in the flattened [C / group, kh, kw].
inline ConvTap conv_tap(const ConvGeometry& geometry, int64_t index) {
  const int64_t in_window = index % geometry.taps();
  return {index / geometry.taps(), in_window / geometry.kernel[1] * geometry.dilations[0],
          in_window % geometry.kernel[1] * geometry.dilations[1]};
}

// Why the attributes are out of range or contradict each other, as one sentence that names the
// values; empty when they are sound.
std::string validate(const ConvGeometry& geometry);

// Likewise for the attributes together with the weights, which are validated too. in_features of
// the view must be the size of the window [C / group, kh, kw], and out_features out_channels.
std::string validate(const CondensedView& view, const ConvGeometry& geometry);

// Why the convolution cannot run on an input of that size; empty when it can. The geometry is
// sound.
std::string validate(const ConvGeometry& geometry, const ConvInput& input);

}  // namespace fanin
