#include "python/quantized_arrays.h"

#include <stdexcept>

namespace fanin {

QuantizedType type_of(const std::string& name, const char* argument) {
  if (name == "uint8") return QuantizedType::kUint8;
  if (name == "int8") return QuantizedType::kInt8;
  if (name == "float32") return QuantizedType::kFloat32;
  throw std::invalid_argument(std::string(argument) + " is " + name +
                              ", it must be uint8, int8 or float32");
}

QuantizedType type_of_x(const py::object& x) {
  if (!py::isinstance<py::array>(x)) throw std::invalid_argument("x must be a NumPy array");
  if (py::isinstance<py::array_t<int8_t>>(x)) return QuantizedType::kInt8;
  if (py::isinstance<py::array_t<uint8_t>>(x)) return QuantizedType::kUint8;
  throw std::invalid_argument("x is " + dtype_name(py::reinterpret_borrow<py::array>(x)) +
                              ", it must be uint8 or int8");
}

py::array array_of_type(QuantizedType type, const py::object& object, const char* name,
                        py::ssize_t dimensions) {
  if (type == QuantizedType::kUint8) return array_of<uint8_t>(object, name, dimensions);
  if (type == QuantizedType::kInt8) return array_of<int8_t>(object, name, dimensions);
  return array_of<float>(object, name, dimensions);
}

py::dtype dtype_of(QuantizedType type) {
  if (type == QuantizedType::kUint8) return py::dtype::of<uint8_t>();
  if (type == QuantizedType::kInt8) return py::dtype::of<int8_t>();
  return py::dtype::of<float>();
}

void check_zero_point(const char* name, int64_t zero_point, QuantizedType type) {
  if (type == QuantizedType::kFloat32 && zero_point == 0) return;
  const int64_t low = type == QuantizedType::kInt8 ? -128 : 0, high = low + 255;
  if (type == QuantizedType::kFloat32 || zero_point < low || zero_point > high)
    throw std::invalid_argument(
        std::string(name) + " is " + std::to_string(zero_point) +
        (type == QuantizedType::kFloat32
             ? ", it must be 0 for float32"
             : ", it must be " + std::to_string(low) + " to " + std::to_string(high)));
}

}  // namespace fanin
