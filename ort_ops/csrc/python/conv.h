// The part of the binding that runs convolutions.
#pragma once

#include <pybind11/pybind11.h>

namespace fanin {

void bind_conv(pybind11::module_& module);

}  // namespace fanin
