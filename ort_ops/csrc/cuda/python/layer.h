// The four arrays of a layer for both Python bindings; 16-bit floats are arrays of their bits.
#pragma once

#include <pybind11/numpy.h>

#include <stdexcept>
#include <string>

#include "core/condensed.h"

namespace fanin::cuda {

inline ValueType parse_type(const std::string& name) {
  for (ValueType type : {ValueType::kFloat32, ValueType::kFloat16, ValueType::kBfloat16})
    if (name == value_type_name(type)) return type;
  throw std::invalid_argument("type " + name + " must be float32, float16 or bfloat16");
}

// A checked view of the arrays, which the caller keeps alive.
inline CondensedView view_of(const pybind11::array& values, ValueType value_type,
                             const pybind11::array& indices, const pybind11::array& rows,
                             const pybind11::array& bias, int64_t in_features) {
  namespace py = pybind11;
  const auto check = [](const py::array& array, bool sound, const char* name) {
    if (!sound || !(array.flags() & py::array::c_style))
      throw std::invalid_argument(std::string(name) + " has the wrong shape, type or layout");
  };
  const bool narrow_indices = py::isinstance<py::array_t<uint16_t>>(indices);
  check(values,
        values.ndim() == 2 &&
            (value_type == ValueType::kFloat32 ? py::isinstance<py::array_t<float>>(values)
                                               : py::isinstance<py::array_t<uint16_t>>(values)),
        "values");
  check(indices,
        indices.ndim() == 2 && indices.shape(0) == values.shape(0) &&
            indices.shape(1) == values.shape(1) &&
            (narrow_indices || py::isinstance<py::array_t<int32_t>>(indices)),
        "indices");
  check(rows,
        rows.ndim() == 1 && rows.shape(0) == values.shape(0) &&
            py::isinstance<py::array_t<int32_t>>(rows),
        "rows");
  check(bias, bias.ndim() == 1 && py::isinstance<py::array_t<float>>(bias), "bias");
  CondensedView view;
  view.in_features = in_features;
  view.out_features = bias.shape(0);
  view.active = values.shape(0);
  view.fan_in = values.shape(1);
  view.values = values.data();
  view.value_type = value_type;
  view.indices = indices.data();
  view.index_type = narrow_indices ? IndexType::kUint16 : IndexType::kInt32;
  view.rows = static_cast<const int32_t*>(rows.data());
  view.bias = static_cast<const float*>(bias.data());
  const std::string why = validate(view);
  if (!why.empty()) throw std::invalid_argument(why);
  return view;
}

}  // namespace fanin::cuda
