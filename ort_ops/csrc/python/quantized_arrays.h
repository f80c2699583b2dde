// Conversions and checks of the arrays of quantized layers.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "core/quantized_gemm.h"
#include "python/arrays.h"

namespace fanin {

// Throws std::invalid_argument unless the name is uint8, int8 or float32.
QuantizedType type_of(const std::string& name, const char* argument);

// The type of x. Throws std::invalid_argument unless it is an array of uint8 or int8.
QuantizedType type_of_x(const py::object& x);

// `object` as array_of gives it, of that type.
py::array array_of_type(QuantizedType type, const py::object& object, const char* name,
                        py::ssize_t dimensions);

py::dtype dtype_of(QuantizedType type);

// Throws std::invalid_argument unless the type can hold it; that of float32 is 0.
void check_zero_point(const char* name, int64_t zero_point, QuantizedType type);

}  // namespace fanin
