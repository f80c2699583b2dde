#include "python/arrays.h"

#include <algorithm>

namespace fanin {
namespace {

FloatArray weights(const py::object& values) {
  return float_array(values, "values", 2,
                     {ValueType::kFloat32, ValueType::kFloat16, ValueType::kBfloat16});
}

}  // namespace

void check_length(const char* name, py::ssize_t length, const char* expected_name,
                  int64_t expected) {
  if (length != expected)
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(length) +
                                " elements, " + expected_name + " is " + std::to_string(expected));
}

std::string shape_text(const py::array& array) {
  std::string text = "[";
  for (py::ssize_t i = 0; i < array.ndim(); ++i)
    text += (i ? ", " : "") + std::to_string(array.shape(i));
  return text + "]";
}

std::string dtype_name(const py::array& array) {
  return py::str(array.dtype()).cast<std::string>();
}

FloatArray float_array(const py::object& object, const char* name, py::ssize_t dimensions,
                       std::initializer_list<ValueType> types) {
  if (!py::isinstance<py::array>(object))
    throw std::invalid_argument(std::string(name) + " must be a NumPy array");
  // The common case first: reading the name of a dtype takes microseconds, which would distort
  // kernel benchmarks.
  const bool float32_allowed =
      std::find(types.begin(), types.end(), ValueType::kFloat32) != types.end();
  if (float32_allowed && py::isinstance<py::array_t<float>>(object))
    return {ValueType::kFloat32, array_of<float>(object, name, dimensions)};
  const std::string dtype = dtype_name(py::reinterpret_borrow<py::array>(object));
  std::string allowed;
  for (ValueType type : types) {
    allowed += (allowed.empty() ? "" : " or ") + std::string(value_type_name(type));
    if (dtype != value_type_name(type)) continue;
    const py::object bits =
        py::module_::import("numpy").attr("ascontiguousarray")(object).attr("view")("uint16");
    return {type, array_of<uint16_t>(bits, name, dimensions)};
  }
  throw std::invalid_argument(std::string(name) + " is " + dtype + ", it must be " + allowed);
}

StoredArrays::StoredArrays(py::array values_array, ValueType value_type,
                           const py::object& indices_object, const py::object& rows_object,
                           int64_t in_features, int64_t out_features)
    : values(std::move(values_array)), rows(array_of<int32_t>(rows_object, "rows", 1)) {
  view.value_type = value_type;
  if (py::isinstance<py::array_t<uint16_t>>(indices_object)) {
    view.index_type = IndexType::kUint16;
    indices = array_of<uint16_t>(indices_object, "indices", 2);
  } else {
    if (py::isinstance<py::array>(indices_object) &&
        !py::isinstance<py::array_t<int32_t>>(indices_object))
      throw std::invalid_argument("indices is " +
                                  dtype_name(py::reinterpret_borrow<py::array>(indices_object)) +
                                  ", it must be uint16 or int32");
    view.index_type = IndexType::kInt32;
    indices = array_of<int32_t>(indices_object, "indices", 2);
  }
  if (indices.shape(0) != values.shape(0) || indices.shape(1) != values.shape(1))
    throw std::invalid_argument("indices has the shape " + shape_text(indices) + ", values has " +
                                shape_text(values));
  check_length("rows", rows.size(), "the number of stored rows", values.shape(0));
  view.in_features = in_features;
  view.out_features = out_features;
  view.active = values.shape(0);
  view.fan_in = values.shape(1);
  view.values = values.data();
  view.indices = indices.data();
  view.rows = rows.data();
}

LayerArrays::LayerArrays(const py::object& values_object, const py::object& indices_object,
                         const py::object& rows_object, const py::object& bias_object,
                         int64_t in_features, int64_t out_features)
    : LayerArrays(weights(values_object), indices_object, rows_object, bias_object, in_features,
                  out_features) {}

LayerArrays::LayerArrays(const FloatArray& weights, const py::object& indices_object,
                         const py::object& rows_object, const py::object& bias_object,
                         int64_t in_features, int64_t out_features)
    : StoredArrays(weights.array, weights.type, indices_object, rows_object, in_features,
                   out_features),
      bias(array_of<float>(bias_object, "bias", 1)) {
  check_length("bias", bias.size(), "out_features", out_features);
  view.bias = bias.data();
}

BatchRange batch_range(int64_t min_batch, std::optional<int64_t> max_batch) {
  BatchRange range;
  range.min = min_batch;
  if (max_batch) range.max = *max_batch;
  if (range.min < 1 || range.max < range.min)
    throw std::invalid_argument("batches of " + std::to_string(range.min) + " to " +
                                std::to_string(range.max) + " are not a range");
  return range;
}

DispatchCost dispatch_of(const std::pair<double, double>& microseconds) {
  for (const double part : {microseconds.first, microseconds.second})
    if (!std::isfinite(part) || part < 0)
      throw std::invalid_argument("dispatch is (" + std::to_string(microseconds.first) + ", " +
                                  std::to_string(microseconds.second) +
                                  "), it must be two numbers of microseconds from 0 up");
  return {microseconds.first, microseconds.second};
}

ThreadExecutor threads_of(int64_t threads) {
  if (threads < 1 || threads > 1024)
    throw std::invalid_argument("threads is " + std::to_string(threads) + ", it must be 1 to 1024");
  return ThreadExecutor(static_cast<size_t>(threads));
}

}  // namespace fanin
