// A tensor of the runtime, read only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ort/abi.h"
#include "ort/runtime.h"

namespace fanin::ort {

// Dimensions; -1 is unknown.
struct Shape {
  const int64_t* dims = nullptr;
  size_t rank = 0;

  int64_t operator[](size_t axis) const { return dims[axis]; }
  int64_t back() const { return dims[rank - 1]; }
  // The same shape, as far as both are known.
  bool agrees(const Shape& other) const;
};

inline Shape shape_of(const std::vector<int64_t>& dims) { return {dims.data(), dims.size()}; }

// Unknown dimensions match any size.
inline bool agree(int64_t a, int64_t b) { return a < 0 || b < 0 || a == b; }

// "[2, ?, 4]"
std::string to_string(const Shape& shape);

// "float16"
const char* type_name(ElementType type);

class Tensor {
 public:
  // Throws Error if the value is null (an absent input).
  Tensor(const Runtime& runtime, const OrtValue* value);
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  const Shape& shape() const { return shape_; }
  ElementType type() const { return type_; }
  template <typename T>
  const T* data() const {
    return static_cast<const T*>(data_);
  }

 private:
  Shape shape_;
  ElementType type_ = kUndefined;
  const void* data_ = nullptr;
  std::vector<int64_t> dims_;  // only if the runtime does not give access to its own
};

}  // namespace fanin::ort
