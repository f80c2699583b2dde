// The attributes of a convolution and the sizes derived from them. All convolutions are 2-d here:
// the height of a 1-d one is 1.
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

  // Taps of the window in one channel.
  int64_t taps() const { return kernel[0] * kernel[1]; }

  // Y's size along axis 0 (height) or 1 (width), as in ONNX; 0 if the window does not fit.
  int64_t output_size(int axis, int64_t input) const {
    const int64_t window = dilations[axis] * (kernel[axis] - 1) + 1;
    const int64_t padded = input + pads[axis] + pads[axis + 2];
    return padded < window ? 0 : (padded - window) / strides[axis] + 1;
  }

  // 1 x 1 without strides and pads: an output pixel reads the input pixel at the same position.
  bool is_pointwise() const;

  bool operator==(const ConvGeometry& other) const;
};

// One position of the window: a channel within its group, and row and column offsets of input
// pixels before the pads are subtracted.
struct ConvTap {
  int64_t channel;
  int64_t row;
  int64_t column;
};

// The position of an index of the condensed format, in the flattened [C / group, kh, kw].
inline ConvTap conv_tap(const ConvGeometry& geometry, int64_t index) {
  const int64_t in_window = index % geometry.taps();
  return {index / geometry.taps(), in_window / geometry.kernel[1] * geometry.dilations[0],
          in_window % geometry.kernel[1] * geometry.dilations[1]};
}

// Why the attributes are out of range or contradict each other, as one sentence that names the
// values; empty if they are valid.
std::string validate(const ConvGeometry& geometry);

// The same for the attributes together with the weights, which are validated too. The view's
// in_features must be the size of the window [C / group, kh, kw], its out_features out_channels.
std::string validate(const CondensedView& view, const ConvGeometry& geometry);

// Why the convolution cannot run on an input of that size; empty if it can. The geometry must be
// valid.
std::string validate(const ConvGeometry& geometry, const ConvInput& input);

}  // namespace fanin
