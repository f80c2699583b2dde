#include "ort/condensed_conv_inputs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace fanin::ort {
namespace {

constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();

// One number for each spatial axis, `ends` times over.
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

// Where a spatial axis of the geometry stands in X, whose rank is 3 or 4.
std::string place_of(const Shape& x, const ConvAttributes& attributes, size_t axis) {
  return "X has shape " + to_string(x) + "; dimension " + std::to_string(axis + attributes.axes);
}

// The attributes gate_scale and gate_shift.
Gate read_gate(const KernelInfo& info) {
  Gate gate;
  gate.scale = info.float_attribute("gate_scale", gate.scale);
  gate.shift = info.float_attribute("gate_shift", gate.shift);
  for (const auto& [name, value] :
       {std::pair{"gate_scale", gate.scale}, {"gate_shift", gate.shift}})
    if (!std::isfinite(value)) refuse(std::string("attribute ") + name + " is not finite");
  return gate;
}

// A known length of X along a spatial axis of the geometry.
void check_length(const Shape& x, const ConvAttributes& attributes, size_t axis, int64_t length) {
  const ConvGeometry& geometry = attributes.geometry;
  if (length > kMaxSize)
    refuse(place_of(x, attributes, axis) + " is more than " + std::to_string(kMaxSize));
  if (geometry.output_size(static_cast<int>(axis), length) >= 1) return;
  const int64_t reach = geometry.dilations[axis] * (geometry.kernel[axis] - 1) + 1;
  refuse(place_of(x, attributes, axis) + " with its pads is " +
         std::to_string(length + geometry.pads[axis] + geometry.pads[axis + 2]) +
         " long, shorter than the kernel, which reaches over " + std::to_string(reach));
}

}  // namespace

ConvAttributes read_conv_attributes(const KernelInfo& info) {
  ConvAttributes attributes;
  ConvGeometry& geometry = attributes.geometry;
  geometry.in_channels = size_attribute(info, "in_channels");
  geometry.out_channels = size_attribute(info, "out_channels");
  geometry.group = size_attribute(info, "group");

  attributes.axes = info.ints_attribute("kernel_shape").size();
  const size_t axes = attributes.axes;
  if (axes != 1 && axes != 2) {
    refuse("attribute kernel_shape has " + std::to_string(axes) +
           " numbers, it must have one or two");
  }
  const std::vector<int64_t> kernel = axis_attribute(info, "kernel_shape", axes, 1);
  const std::vector<int64_t> strides = axis_attribute(info, "strides", axes, 1);
  const std::vector<int64_t> dilations = axis_attribute(info, "dilations", axes, 1);
  const std::vector<int64_t> pads = axis_attribute(info, "pads", axes, 0, 2);
  for (size_t i = 0; i < axes; ++i) {
    const size_t axis = i + 2 - axes;
    geometry.kernel[axis] = kernel[i];
    geometry.strides[axis] = strides[i];
    geometry.dilations[axis] = dilations[i];
    geometry.pads[axis] = pads[i];
    geometry.pads[axis + 2] = pads[axes + i];
  }
  refuse_unless_empty(validate(geometry));
  attributes.window = geometry.group_inputs() * geometry.taps();
  attributes.clip = read_clip(info);
  attributes.gate = read_gate(info);
  return attributes;
}

DeclaredConv check_declared(const Runtime& runtime, const KernelInfo& info,
                            const ConvAttributes& attributes, ReadScalar read) {
  const DeclaredInputs declared = check_declared_weights(info, attributes.sizes());
  DeclaredConv conv;
  conv.variable_weights = declared.variable_weights;
  const Shape x = declared.shape(kX);
  if (x.rank > 0) conv.input = input_of(x, attributes);
  check_declared_residual(runtime, info, declared.shape(kResidual),
                          output_dims(conv.input, attributes), read);
  return conv;
}

ConvInput input_of(const Shape& x, const ConvAttributes& attributes) {
  if (x.rank != attributes.axes + 2 || !agree(x[1], attributes.geometry.in_channels)) {
    refuse("X has shape " + to_string(x) + ", it must be " +
           (attributes.axes == 2 ? "[N, in_channels, H, W]" : "[N, in_channels, L]") +
           " with in_channels, which is " + std::to_string(attributes.geometry.in_channels));
  }
  const ConvInput input{x[0], attributes.axes == 2 ? x[2] : 1, x.back()};
  if (input.height >= 0) check_length(x, attributes, 0, input.height);
  if (input.width >= 0) check_length(x, attributes, 1, input.width);
  if (std::min({input.batch, input.height, input.width}) >= 0) {
    const std::string why = validate(attributes.geometry, input);
    if (!why.empty()) refuse("X has shape " + to_string(x) + "; " + why);
  }
  return input;
}

std::vector<int64_t> output_dims(const ConvInput& input, const ConvAttributes& attributes) {
  const auto length = [&](int axis, int64_t size) {
    return size < 0 ? -1 : attributes.geometry.output_size(axis, size);
  };
  std::vector<int64_t> dims{input.batch, attributes.geometry.out_channels};
  if (attributes.axes == 2) dims.push_back(length(0, input.height));
  dims.push_back(length(1, input.width));
  return dims;
}

CondensedView sound_view(const WeightTensors& weights, const ConvAttributes& attributes) {
  const CondensedView view = weights.view(attributes.sizes());
  refuse_unless_empty(validate(view, attributes.geometry));
  return view;
}

}  // namespace fanin::ort
