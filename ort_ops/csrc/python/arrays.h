// Conversions and checks of NumPy arrays, for all classes of the binding.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/condensed.h"
#include "core/gemm.h"
#include "core/thread_executor.h"

namespace fanin {

namespace py = pybind11;

// Throws std::invalid_argument unless the array `name` has as many elements as expected.
void check_length(const char* name, py::ssize_t length, const char* expected_name,
                  int64_t expected);

std::string shape_text(const py::array& array);
std::string dtype_name(const py::array& array);

// `object` as a C-contiguous array of exactly T, with that many dimensions. Types are not
// converted, since a silent conversion from float64 to float32 would distort what the caller
// measures; only the memory layout is.
template <typename T>
py::array_t<T, py::array::c_style> array_of(const py::object& object, const char* name,
                                            py::ssize_t dimensions) {
  if (!py::isinstance<py::array>(object))
    throw std::invalid_argument(std::string(name) + " must be a NumPy array");
  const py::array array = py::reinterpret_borrow<py::array>(object);
  if (!py::isinstance<py::array_t<T>>(array))
    throw std::invalid_argument(std::string(name) + " is " +
                                py::str(array.dtype()).cast<std::string>() + ", it must be " +
                                py::str(py::dtype::of<T>()).template cast<std::string>());
  if (array.ndim() != dimensions)
    throw std::invalid_argument(std::string(name) + " has the shape " + shape_text(array) +
                                ", it must have " + std::to_string(dimensions) +
                                (dimensions == 1 ? " dimension" : " dimensions"));
  auto result = py::array_t<T, py::array::c_style>::ensure(array);
  if (!result) throw py::error_already_set();
  return result;
}

struct FloatArray {
  ValueType type;
  py::array array;  // C-contiguous; of 16-bit types the bits
};

// A float array of one of the types, by the name of its dtype; bfloat16 is ml_dtypes' type.
FloatArray float_array(const py::object& object, const char* name, py::ssize_t dimensions,
                       std::initializer_list<ValueType> types);

// The stored rows of a layer, kept alive, and a view of them. Their shapes are consistent; their
// contents are not checked.
struct StoredArrays {
  py::array values;
  py::array indices;
  py::array_t<int32_t, py::array::c_style> rows;
  CondensedView view;

  StoredArrays(py::array values_array, ValueType value_type, const py::object& indices_object,
               const py::object& rows_object, int64_t in_features, int64_t out_features);
};

// A layer of float weights.
struct LayerArrays : StoredArrays {
  py::array_t<float, py::array::c_style> bias;

  LayerArrays(const py::object& values_object, const py::object& indices_object,
              const py::object& rows_object, const py::object& bias_object, int64_t in_features,
              int64_t out_features);

 private:
  LayerArrays(const FloatArray& weights, const py::object& indices_object,
              const py::object& rows_object, const py::object& bias_object, int64_t in_features,
              int64_t out_features);
};

// Throws std::invalid_argument unless threads is 1 to 1024.
ThreadExecutor threads_of(int64_t threads);

// A range of batches. Throws std::invalid_argument for an empty one.
BatchRange batch_range(int64_t min_batch, std::optional<int64_t> max_batch);

// The cost of a dispatch in microseconds: a fixed part, and one per thread. Throws
// std::invalid_argument for negative or non-finite numbers.
DispatchCost dispatch_of(const std::pair<double, double>& microseconds);

// A maximum as a Python object; None if there is no limit.
inline std::optional<int64_t> limit(int64_t most) {
  if (most == std::numeric_limits<int64_t>::max()) return std::nullopt;
  return most;
}

}  // namespace fanin
