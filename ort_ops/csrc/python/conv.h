// The part of the binding that runs convolutions.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstdint>

#include "core/conv_geometry.h"

namespace fanin {

using Pair = std::array<int64_t, 2>;
using Pads = std::array<int64_t, 4>;

// Throws std::invalid_argument for attributes that are out of range or contradict each other.
ConvGeometry geometry_of(int64_t in_channels, int64_t out_channels, const Pair& kernel_shape,
                         const Pair& strides, const Pads& pads, const Pair& dilations,
                         int64_t group);

void bind_conv(pybind11::module_& module);

}  // namespace fanin
