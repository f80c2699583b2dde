#include "ort/conv_op.h"

#include <cstdint>
#include <limits>
#include <utility>

namespace fanin::ort {
namespace {

constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();

// The numbers of one spatial axis.
struct Axis {
  int64_t kernel, stride, pads, dilation;

  bool sound() const {
    const auto size = [](int64_t value) { return value >= 1 && value <= kMaxSize; };
    return size(kernel) && size(stride) && size(dilation) && pads >= 0 && pads <= 2 * kMaxSize;
  }
  int64_t reach() const { return dilation * (kernel - 1); }
};

// Writes the length of Y over that of X: a length that the convolution keeps keeps its name.
void convolve(const Axis& axis, int64_t& dim, std::string& name) {
  if (axis.stride == 1 && axis.reach() == axis.pads) return;
  name.clear();
  if (dim >= 0 && dim <= kMaxSize && dim + axis.pads > axis.reach())
    dim = (dim + axis.pads - axis.reach() - 1) / axis.stride + 1;
  else
    dim = -1;
}

OrtStatus* infer_shape(const OrtCustomOp* op, OrtShapeInferContext* context) noexcept {
  const auto& self = *static_cast<const ConvOp*>(op);
  return guarded(self.runtime.api, self.name, [&] {
    const ShapeInference node(self.runtime.api, context);
    const auto out_channels = node.int_attribute("out_channels");
    const auto kernel = node.ints_attribute("kernel_shape");
    const auto strides = node.ints_attribute("strides");
    const auto pads = node.ints_attribute("pads");
    const auto dilations = node.ints_attribute("dilations");
    if (!out_channels || *out_channels < 1 || !kernel || !strides || !pads || !dilations) return;
    const size_t axes = kernel->size();
    InferredShape shape = node.x();
    if (shape.dims.size() != axes + 2 || strides->size() != axes || dilations->size() != axes ||
        pads->size() != 2 * axes) {
      return;
    }
    shape.dims[1] = *out_channels;
    shape.names[1].clear();
    for (size_t i = 0; i < axes; ++i) {
      const int64_t begin = (*pads)[i], end = (*pads)[axes + i];
      if (begin < 0 || end < 0 || begin > kMaxSize || end > kMaxSize) return;
      const Axis axis{(*kernel)[i], (*strides)[i], begin + end, (*dilations)[i]};
      if (!axis.sound()) return;
      convolve(axis, shape.dims[2 + i], shape.names[2 + i]);
    }
    node.set_y(std::move(shape));
  });
}

}  // namespace

ConvOp::ConvOp(const Runtime& owner, ElementType activations)
    : CondensedOp(owner, activations, "CondensedConv") {
  InferOutputShapeFn = infer_shape;
}

}  // namespace fanin::ort
