#include "ort/tensor.h"

#include <algorithm>

#include "ort/status.h"

namespace fanin::ort {

bool Shape::agrees(const Shape& other) const {
  return rank == other.rank && std::equal(dims, dims + rank, other.dims, agree);
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (size_t axis = 0; axis < shape.rank; ++axis) {
    if (axis > 0) text += ", ";
    text += shape[axis] < 0 ? "?" : std::to_string(shape[axis]);
  }
  return text + "]";
}

const char* type_name(ElementType type) {
  switch (type) {
    case kUndefined:
      return "undefined";
    case kFloat:
      return "float32";
    case kUint8:
      return "uint8";
    case kInt8:
      return "int8";
    case kUint16:
      return "uint16";
    case kInt16:
      return "int16";
    case kInt32:
      return "int32";
    case kInt64:
      return "int64";
    case kString:
      return "string";
    case kBool:
      return "bool";
    case kFloat16:
      return "float16";
    case kDouble:
      return "float64";
    case kUint32:
      return "uint32";
    case kUint64:
      return "uint64";
    case kBfloat16:
      return "bfloat16";
  }
  return "of another type";
}

Tensor::Tensor(const Runtime& runtime, const OrtValue* value) {
  if (value == nullptr) throw Error(kInvalidArgument, "an input is absent");
  const Api& api = runtime.api;
  int type = kUndefined;
  if (runtime.has_api_24) {
    check(api,
          api.GetTensorElementTypeAndShapeDataReference(value, &type, &shape_.dims, &shape_.rank));
  } else {
    OrtTensorTypeAndShapeInfo* raw = nullptr;
    check(api, api.GetTensorTypeAndShape(value, &raw));
    const Owned<OrtTensorTypeAndShapeInfo> info(raw, [&api](OrtTensorTypeAndShapeInfo* owned) {
      api.ReleaseTensorTypeAndShapeInfo(owned);
    });
    check(api, api.GetTensorElementType(info.get(), &type));
    check(api, api.GetDimensionsCount(info.get(), &shape_.rank));
    dims_.resize(shape_.rank);
    check(api, api.GetDimensions(info.get(), dims_.data(), shape_.rank));
    shape_.dims = dims_.data();
  }
  type_ = static_cast<ElementType>(type);
  void* data = nullptr;
  check(api, api.GetTensorMutableData(const_cast<OrtValue*>(value), &data));
  data_ = data;
}

}  // namespace fanin::ort
