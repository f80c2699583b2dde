// Arguments of a convolution for both Python bindings: its geometry, always with two spatial axes,
// and arrays of images.
#pragma once

#include <pybind11/numpy.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

#include "core/condensed.h"
#include "core/conv_geometry.h"

namespace fanin::cuda {

using Pair = std::array<int64_t, 2>;

// Builds the geometry. Throws std::invalid_argument if it is invalid or does not fit the view.
inline ConvGeometry geometry_of(const CondensedView& view, int64_t in_channels, int64_t group,
                                const Pair& kernel, const Pair& strides,
                                const std::array<int64_t, 4>& pads, const Pair& dilations) {
  ConvGeometry geometry;
  geometry.in_channels = in_channels;
  geometry.out_channels = view.out_features;
  geometry.group = group;
  std::copy(kernel.begin(), kernel.end(), geometry.kernel);
  std::copy(strides.begin(), strides.end(), geometry.strides);
  std::copy(pads.begin(), pads.end(), geometry.pads);
  std::copy(dilations.begin(), dilations.end(), geometry.dilations);
  const std::string why = validate(view, geometry);
  if (!why.empty()) throw std::invalid_argument(why);
  return geometry;
}

// Refuses an array that is not [batch, channels, height, width] with elements of `bytes`.
inline void check_images(const pybind11::array& array, int64_t batch, int64_t channels,
                         int64_t height, int64_t width, int64_t bytes, const char* name) {
  namespace py = pybind11;
  if (array.ndim() != 4 || array.shape(0) != batch || array.shape(1) != channels ||
      array.shape(2) != height || array.shape(3) != width || array.itemsize() != bytes ||
      !(array.flags() & py::array::c_style))
    throw std::invalid_argument(std::string(name) + " has the wrong shape, type or layout");
}

// The size of x, which must be [batch, in_channels, height, width] and valid for the geometry; the
// residual (or None) and y must have the output's shape.
inline ConvInput input_of(const ConvGeometry& geometry, const pybind11::array& x,
                          const pybind11::object& residual, const pybind11::array& y,
                          int64_t bytes) {
  namespace py = pybind11;
  if (x.ndim() != 4) throw std::invalid_argument("x has the wrong shape, type or layout");
  const ConvInput input{x.shape(0), x.shape(2), x.shape(3)};
  const std::string why = validate(geometry, input);
  if (!why.empty()) throw std::invalid_argument(why);
  check_images(x, input.batch, geometry.in_channels, input.height, input.width, bytes, "x");
  const int64_t height = geometry.output_size(0, input.height);
  const int64_t width = geometry.output_size(1, input.width);
  check_images(y, input.batch, geometry.out_channels, height, width, bytes, "y");
  if (!residual.is_none())
    check_images(residual.cast<py::array>(), input.batch, geometry.out_channels, height, width,
                 bytes, "residual");
  return input;
}

}  // namespace fanin::cuda
