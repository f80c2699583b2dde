// The attributes and sizes of the convolutions.
#pragma once

#include <cstdint>
#include <vector>

#include "core/conv_geometry.h"
#include "ort/condensed_op.h"
#include "ort/node_inputs.h"

namespace fanin::ort {

void infer_conv_shape(const ShapeInference& node, int y_type, bool channels_last);

// The members that ops.h describes.
class ConvShape {
 public:
  using RunSize = ConvInput;

  // Refuses attributes that are missing, of the wrong type or length, out of range, or that
  // contradict one another.
  ConvShape(const KernelInfo& info, bool channels_last);

  WeightSizes sizes() const {
    return {geometry_.group_inputs() * geometry_.taps(), geometry_.out_channels, "out_channels"};
  }
  // Refuses X unless it is [N, in_channels, H, W], or [N, in_channels, L] with one axis, or has the
  // channels last, and the kernel fits into it, as far as its sizes are known.
  void check_x(const Shape& x) const;

  RunSize run_size(const Shape& x) const {
    const size_t space = channels_last_ ? 1 : 2;
    return {x[0], axes_ == 2 ? x[space] : 1, x[space + axes_ - 1]};
  }

  // One packed layer serves every batch.
  BatchRange batches(const Shape&) const { return {}; }

  // [N, out_channels, ...], or the channels last; -1 where unknown.
  std::vector<int64_t> output_dims(const Shape& x) const;

 protected:
  ConvGeometry geometry_;
  size_t axes_;  // spatial ones: 1 or 2; with one, the geometry's height is 1
  bool channels_last_;
  Clip clip_;

 private:
  void check_length(const Shape& x, size_t axis, int64_t length) const;
};

}  // namespace fanin::ort
