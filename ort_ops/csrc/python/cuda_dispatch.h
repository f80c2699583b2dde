// The dispatch table of the CUDA kernels, and which of them serves a layer, for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace fanin {

void bind_cuda_dispatch(pybind11::module_& module);

}  // namespace fanin
