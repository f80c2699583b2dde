#include "ort/kernel_info.h"

#include "ort/status.h"

namespace fanin::ort {
namespace {

// The runtime's convention for strings: without a buffer, a call returns the size including the
// NUL.
template <typename Call>
std::string read_string(const Api& api, Call&& call) {
  size_t size = 0;
  check(api, call(nullptr, &size));
  std::string text(size, '\0');
  check(api, call(text.data(), &size));
  text.resize(size > 0 ? size - 1 : 0);
  return text;
}

}  // namespace

std::string KernelInfo::node() const {
  const Api& api = runtime_.api;
  const std::string name = read_string(
      api, [&](char* out, size_t* size) { return api.KernelInfo_GetNodeName(info_, out, size); });
  if (!name.empty()) return std::string(op_) + " node '" + name + "'";
  const std::string output = read_string(api, [&](char* out, size_t* size) {
    return api.KernelInfo_GetOutputName(info_, size_t{0}, out, size);
  });
  return std::string(op_) + " node without name, output '" + output + "'";
}

InputInfo KernelInfo::input(size_t index) const {
  const Api& api = runtime_.api;
  OrtTypeInfo* raw = nullptr;
  check(api, api.KernelInfo_GetInputTypeInfo(info_, index, &raw));
  const Owned<OrtTypeInfo> owned(raw, [&api](OrtTypeInfo* type) { api.ReleaseTypeInfo(type); });
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;  // belongs to `owned`
  check(api, api.CastTypeInfoToTensorInfo(owned.get(), &tensor));
  if (tensor == nullptr) {
    throw Error(kInvalidArgument, "input " + std::to_string(index) + " is not a tensor");
  }
  InputInfo input;
  int type = kUndefined;
  size_t rank = 0;
  check(api, api.GetTensorElementType(tensor, &type));
  check(api, api.GetDimensionsCount(tensor, &rank));
  input.type = static_cast<ElementType>(type);
  input.dims.resize(rank);
  check(api, api.GetDimensions(tensor, input.dims.data(), rank));
  return input;
}

const OrtValue* KernelInfo::constant(size_t index) const {
  int is_constant = 0;
  const OrtValue* value = nullptr;
  check(runtime_.api,
        runtime_.api.KernelInfoGetConstantInput_tensor(info_, index, &is_constant, &value));
  return is_constant ? value : nullptr;
}

// The runtime reports an absent attribute and one of a different type with the same code, and its
// messages change between releases, so the other types are tried.
bool KernelInfo::has_other_type(const char* name) const {
  const Api& api = runtime_.api;
  int64_t integer = 0;
  float real = 0;
  size_t size = 0;
  const auto exists = [&](OrtStatus* status) {
    return succeeded(api, status) || size > 0;  // too small a buffer is an error with a size
  };
  return exists(api.KernelInfoGetAttribute_int64(info_, name, &integer)) ||
         exists(api.KernelInfoGetAttribute_float(info_, name, &real)) ||
         exists(api.KernelInfoGetAttribute_string(info_, name, nullptr, &size)) ||
         exists(api.KernelInfoGetAttributeArray_int64(info_, name, nullptr, &size)) ||
         exists(api.KernelInfoGetAttributeArray_float(info_, name, nullptr, &size));
}

int64_t KernelInfo::int_attribute(const char* name) const {
  int64_t value = 0;
  if (succeeded(runtime_.api, runtime_.api.KernelInfoGetAttribute_int64(info_, name, &value)))
    return value;
  throw Error(kInvalidArgument, std::string("attribute ") + name +
                                    (has_other_type(name) ? " must be an INT" : " is missing"));
}

int64_t KernelInfo::int_attribute(const char* name, int64_t otherwise) const {
  int64_t value = 0;
  if (succeeded(runtime_.api, runtime_.api.KernelInfoGetAttribute_int64(info_, name, &value)))
    return value;
  if (has_other_type(name))
    throw Error(kInvalidArgument, std::string("attribute ") + name + " must be an INT");
  return otherwise;
}

std::vector<int64_t> KernelInfo::ints_attribute(const char* name) const {
  const Api& api = runtime_.api;
  const std::string attribute = std::string("attribute ") + name;
  size_t size = 0;
  if (!succeeded(api, api.KernelInfoGetAttributeArray_int64(info_, name, nullptr, &size)) &&
      !has_other_type(name)) {
    throw Error(kInvalidArgument, attribute + " is missing");
  }
  // The runtime may treat an attribute of a different type as an empty list.
  if (size == 0) throw Error(kInvalidArgument, attribute + " must be a list of INT, at least one");
  std::vector<int64_t> values(size);
  check(api, api.KernelInfoGetAttributeArray_int64(info_, name, values.data(), &size));
  return values;
}

float KernelInfo::float_attribute(const char* name, float otherwise) const {
  float value = 0;
  if (succeeded(runtime_.api, runtime_.api.KernelInfoGetAttribute_float(info_, name, &value)))
    return value;
  if (has_other_type(name))
    throw Error(kInvalidArgument, std::string("attribute ") + name + " must be a FLOAT");
  return otherwise;
}

void KernelInfo::log(LogLevel level, const std::string& message) const {
  const Api& api = runtime_.api;
  const OrtLogger* logger = nullptr;
  check(api, api.KernelInfo_GetLogger(info_, &logger));
  check(api,
        api.Logger_LogMessage(logger, static_cast<int>(level), message.c_str(), "fanin", 0, op_));
}

}  // namespace fanin::ort
