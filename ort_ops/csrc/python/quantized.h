// The part of the binding that runs layers of int8 weights.
#pragma once

#include <pybind11/pybind11.h>

namespace fanin {

void bind_quantized(pybind11::module_& module);

}  // namespace fanin
