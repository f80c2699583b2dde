// The binding of convolutions of int8 weights.
#pragma once

#include <pybind11/pybind11.h>

namespace fanin {

void bind_quantized_conv(pybind11::module_& module);

}  // namespace fanin
