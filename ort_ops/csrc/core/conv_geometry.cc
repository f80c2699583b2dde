#include "core/conv_geometry.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <limits>

namespace fanin {
namespace {

// The largest number of elements of an addressable array.
constexpr int64_t kMaxElements = std::numeric_limits<int64_t>::max() / 16;

std::string check_range(const std::string& name, int64_t value, int64_t least) {
  if (value >= least && value <= kMaxSize) return {};
  return name + " is " + std::to_string(value) + ", it must be " + std::to_string(least) + " to " +
         std::to_string(kMaxSize);
}

template <size_t kCount>
std::string check_all(const std::string& name, const int64_t (&values)[kCount], int64_t least) {
  for (size_t i = 0; i < kCount; ++i) {
    const std::string why = check_range(name + "[" + std::to_string(i) + "]", values[i], least);
    if (!why.empty()) return why;
  }
  return {};
}

// The product of non-negative sizes; -1 if it exceeds kMaxElements.
int64_t product(std::initializer_list<int64_t> sizes) {
  int64_t result = 1;
  for (int64_t size : sizes) {
    if (size > 0 && result > kMaxElements / size) return -1;
    result *= size;
  }
  return result;
}

}  // namespace

bool ConvGeometry::is_pointwise() const {
  const auto all = [](const auto& values, int64_t value) {
    return std::all_of(std::begin(values), std::end(values),
                       [value](int64_t one) { return one == value; });
  };
  return all(kernel, 1) && all(strides, 1) && all(pads, 0);
}

bool ConvGeometry::operator==(const ConvGeometry& other) const {
  return in_channels == other.in_channels && out_channels == other.out_channels &&
         group == other.group && std::equal(kernel, std::end(kernel), other.kernel) &&
         std::equal(strides, std::end(strides), other.strides) &&
         std::equal(pads, std::end(pads), other.pads) &&
         std::equal(dilations, std::end(dilations), other.dilations);
}

std::string validate(const ConvGeometry& geometry) {
  std::string why = check_range("in_channels", geometry.in_channels, 1);
  if (why.empty()) why = check_range("out_channels", geometry.out_channels, 1);
  if (why.empty()) why = check_range("group", geometry.group, 1);
  if (why.empty()) why = check_all("kernel_shape", geometry.kernel, 1);
  if (why.empty()) why = check_all("strides", geometry.strides, 1);
  if (why.empty()) why = check_all("pads", geometry.pads, 0);
  if (why.empty()) why = check_all("dilations", geometry.dilations, 1);
  if (!why.empty()) return why;
  const std::string group = std::to_string(geometry.group);
  if (geometry.in_channels % geometry.group != 0)
    return "in_channels is " + std::to_string(geometry.in_channels) + ", not a multiple of group " +
           group;
  if (geometry.out_channels % geometry.group != 0)
    return "out_channels is " + std::to_string(geometry.out_channels) +
           ", not a multiple of group " + group;
  const int64_t window = product({geometry.group_inputs(), geometry.kernel[0], geometry.kernel[1]});
  if (window < 0 || window > kMaxSize)
    return "the window of " + std::to_string(geometry.group_inputs()) + " channels, " +
           std::to_string(geometry.kernel[0]) + " x " + std::to_string(geometry.kernel[1]) +
           ", has more than " + std::to_string(kMaxSize) + " places";
  return {};
}

std::string validate(const CondensedView& view, const ConvGeometry& geometry) {
  const std::string why = validate(geometry);
  if (!why.empty()) return why;
  const int64_t window = geometry.group_inputs() * geometry.taps();
  if (view.in_features != window)
    return "in_features is " + std::to_string(view.in_features) + ", the window of " +
           std::to_string(geometry.group_inputs()) + " channels, " +
           std::to_string(geometry.kernel[0]) + " x " + std::to_string(geometry.kernel[1]) +
           ", has " + std::to_string(window);
  if (view.out_features != geometry.out_channels)
    return "out_features is " + std::to_string(view.out_features) + ", out_channels is " +
           std::to_string(geometry.out_channels);
  return validate(view);
}

std::string validate(const ConvGeometry& geometry, const ConvInput& input) {
  std::string why = check_range("the batch", input.batch, 0);
  if (why.empty()) why = check_range("the height of X", input.height, 0);
  if (why.empty()) why = check_range("the width of X", input.width, 0);
  if (!why.empty()) return why;
  const int64_t height = geometry.output_size(0, input.height);
  const int64_t width = geometry.output_size(1, input.width);
  if (height < 1 || width < 1)
    return "the window, " + std::to_string(geometry.kernel[0]) + " x " +
           std::to_string(geometry.kernel[1]) + " with dilations " +
           std::to_string(geometry.dilations[0]) + ", " + std::to_string(geometry.dilations[1]) +
           ", is larger than X of " + std::to_string(input.height) + " x " +
           std::to_string(input.width) + " with its padding";
  if (product({input.batch, geometry.in_channels, input.height, input.width}) < 0 ||
      product({input.batch, geometry.out_channels, height, width}) < 0)
    return "X or Y is too large to address";
  return {};
}

}  // namespace fanin
