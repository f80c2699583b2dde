#include "ort/conv_shape.h"

#include <algorithm>
#include <string>
#include <utility>

namespace fanin::ort {
namespace {

// The numbers of one spatial axis.
struct Axis {
  int64_t kernel, stride, pads, dilation;

  bool sound() const {
    const auto size = [](int64_t value) { return value >= 1 && value <= kMaxSize; };
    return size(kernel) && size(stride) && size(dilation) && pads >= 0 && pads <= 2 * kMaxSize;
  }
  int64_t reach() const { return dilation * (kernel - 1); }
};

// Replaces X's length by Y's. If the convolution keeps a length, its symbolic name stays.
void convolve(const Axis& axis, int64_t& dim, std::string& name) {
  if (axis.stride == 1 && axis.reach() == axis.pads) return;
  name.clear();
  if (dim >= 0 && dim <= kMaxSize && dim + axis.pads > axis.reach())
    dim = (dim + axis.pads - axis.reach() - 1) / axis.stride + 1;
  else
    dim = -1;
}

// `ends` numbers for each spatial axis.
std::vector<int64_t> axis_attribute(const KernelInfo& info, const char* name, size_t axes,
                                    int64_t least, size_t ends = 1) {
  const std::vector<int64_t> values = info.ints_attribute(name);
  if (values.size() != ends * axes) {
    refuse(std::string("attribute ") + name + " has " + std::to_string(values.size()) +
           " numbers, with a kernel_shape of " + std::to_string(axes) + " it must have " +
           std::to_string(ends * axes));
  }
  for (size_t i = 0; i < values.size(); ++i)
    check_size(std::string(name) + "[" + std::to_string(i) + "]", values[i], least);
  return values;
}

}  // namespace

void infer_conv_shape(const ShapeInference& node, int y_type, bool channels_last) {
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
  shape.type = y_type;
  const size_t channels = channels_last ? axes + 1 : 1, space = channels_last ? 1 : 2;
  shape.dims[channels] = *out_channels;
  shape.names[channels].clear();
  for (size_t i = 0; i < axes; ++i) {
    const int64_t begin = (*pads)[i], end = (*pads)[axes + i];
    if (begin < 0 || end < 0 || begin > kMaxSize || end > kMaxSize) return;
    const Axis axis{(*kernel)[i], (*strides)[i], begin + end, (*dilations)[i]};
    if (!axis.sound()) return;
    convolve(axis, shape.dims[space + i], shape.names[space + i]);
  }
  node.set_y(std::move(shape));
}

ConvShape::ConvShape(const KernelInfo& info, bool channels_last) : channels_last_(channels_last) {
  geometry_.in_channels = size_attribute(info, "in_channels");
  geometry_.out_channels = size_attribute(info, "out_channels");
  geometry_.group = size_attribute(info, "group");

  axes_ = info.ints_attribute("kernel_shape").size();
  if (axes_ != 1 && axes_ != 2) {
    refuse("attribute kernel_shape has " + std::to_string(axes_) +
           " numbers, it must have one or two");
  }
  const std::vector<int64_t> kernel = axis_attribute(info, "kernel_shape", axes_, 1);
  const std::vector<int64_t> strides = axis_attribute(info, "strides", axes_, 1);
  const std::vector<int64_t> dilations = axis_attribute(info, "dilations", axes_, 1);
  const std::vector<int64_t> pads = axis_attribute(info, "pads", axes_, 0, 2);
  for (size_t i = 0; i < axes_; ++i) {
    const size_t axis = i + 2 - axes_;
    geometry_.kernel[axis] = kernel[i];
    geometry_.strides[axis] = strides[i];
    geometry_.dilations[axis] = dilations[i];
    geometry_.pads[axis] = pads[i];
    geometry_.pads[axis + 2] = pads[axes_ + i];
  }
  refuse_unless_empty(validate(geometry_));
  clip_ = read_clip(info);
}

// A known length of X along a spatial axis of the geometry.
void ConvShape::check_length(const Shape& x, size_t axis, int64_t length) const {
  const auto where = [&] {
    return "X has shape " + to_string(x) + "; dimension " +
           std::to_string(axis + axes_ - (channels_last_ ? 1 : 0));
  };
  if (length > kMaxSize) refuse(where() + " is more than " + std::to_string(kMaxSize));
  if (geometry_.output_size(static_cast<int>(axis), length) >= 1) return;
  const int64_t reach = geometry_.dilations[axis] * (geometry_.kernel[axis] - 1) + 1;
  refuse(where() + " with its pads is " +
         std::to_string(length + geometry_.pads[axis] + geometry_.pads[axis + 2]) +
         " long, shorter than the kernel, which reaches over " + std::to_string(reach));
}

void ConvShape::check_x(const Shape& x) const {
  if (x.rank != axes_ + 2 || !agree(channels_last_ ? x.back() : x[1], geometry_.in_channels)) {
    const std::string space = axes_ == 2 ? "H, W" : "L";
    refuse("X has shape " + to_string(x) + ", it must be [N, " +
           (channels_last_ ? space + ", in_channels]" : "in_channels, " + space + "]") +
           " with in_channels, which is " + std::to_string(geometry_.in_channels));
  }
  const ConvInput input = run_size(x);
  if (input.height >= 0) check_length(x, 0, input.height);
  if (input.width >= 0) check_length(x, 1, input.width);
  if (std::min({input.batch, input.height, input.width}) >= 0) {
    const std::string why = validate(geometry_, input);
    if (!why.empty()) refuse("X has shape " + to_string(x) + "; " + why);
  }
}

std::vector<int64_t> ConvShape::output_dims(const Shape& x) const {
  const ConvInput input = x.rank == 0 ? ConvInput{-1, -1, -1} : run_size(x);
  const auto length = [&](int axis, int64_t size) {
    return size < 0 ? -1 : geometry_.output_size(axis, size);
  };
  std::vector<int64_t> dims{input.batch};
  if (!channels_last_) dims.push_back(geometry_.out_channels);
  if (axes_ == 2) dims.push_back(length(0, input.height));
  dims.push_back(length(1, input.width));
  if (channels_last_) dims.push_back(geometry_.out_channels);
  return dims;
}

}  // namespace fanin::ort
