#include "ort/condensed_op.h"

#include <atomic>
#include <cstdio>
#include <limits>

namespace fanin::ort {
namespace {

// A dimension name that no other dimension has.
std::string fresh_symbol() {
  static std::atomic<uint64_t> count{0};
  return "fanin_unknown_" + std::to_string(count++);
}

const CondensedOp& cast(const OrtCustomOp* op) { return *static_cast<const CondensedOp*>(op); }

OrtStatus* infer_shape(const OrtCustomOp* op, OrtShapeInferContext* context) noexcept {
  const CondensedOp& self = cast(op);
  return guarded(self.runtime.api, self.schema.name,
                 [&] { self.schema.infer_shape(ShapeInference(self.runtime.api, context)); });
}

}  // namespace

CondensedOp::CondensedOp(const Runtime& owner, const ActivationTypes& activations,
                         const OpSchema& op_schema)
    : OrtCustomOp{}, runtime(owner), types(activations), schema(op_schema) {
  version = kApiVersion;
  GetName = [](const OrtCustomOp* op) { return cast(op).schema.name; };
  GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };  // CPU
  GetInputType = [](const OrtCustomOp* op, size_t index) {
    const InputSpec& input = cast(op).schema.inputs[index];
    if (input.typed_as == TypedAs::kItself) return input.type;
    return input.typed_as == TypedAs::kX ? cast(op).types.x : cast(op).types.y;
  };
  GetInputTypeCount = [](const OrtCustomOp* op) { return cast(op).schema.input_count; };
  GetOutputType = [](const OrtCustomOp* op, size_t) { return cast(op).types.y; };
  GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
  GetInputCharacteristic = [](const OrtCustomOp*, size_t) { return kRequired; };
  GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return kRequired; };
  GetInputMemoryType = [](const OrtCustomOp*, size_t) { return kDefaultMemory; };
  GetStartVersion = [](const OrtCustomOp*) { return 1; };
  GetEndVersion = [](const OrtCustomOp*) { return std::numeric_limits<int>::max(); };
  InferOutputShapeFn = infer_shape;
}

InferredShape ShapeInference::input(size_t index) const {
  OrtTensorTypeAndShapeInfo* info = nullptr;  // belongs to the context
  check(api_, api_.ShapeInferContext_GetInputTypeShape(context_, index, &info));
  InferredShape shape;
  size_t rank = 0;
  check(api_, api_.GetTensorElementType(info, &shape.type));
  check(api_, api_.GetDimensionsCount(info, &rank));
  if (rank == 0) return shape;
  shape.dims.resize(rank);
  std::vector<const char*> names(rank);
  check(api_, api_.GetDimensions(info, shape.dims.data(), rank));
  check(api_, api_.GetSymbolicDimensions(info, names.data(), rank));
  shape.names.assign(names.begin(), names.end());
  return shape;
}

std::optional<int64_t> ShapeInference::int_attribute(const char* name) const {
  const OrtOpAttr* attribute = nullptr;
  int64_t value = 0;
  size_t bytes = 0;
  if (!succeeded(api_, api_.ShapeInferContext_GetAttribute(context_, name, &attribute)) ||
      !succeeded(api_, api_.ReadOpAttr(attribute, static_cast<int>(kIntAttribute), &value,
                                       sizeof value, &bytes))) {
    return std::nullopt;
  }
  return value;
}

std::optional<std::vector<int64_t>> ShapeInference::ints_attribute(const char* name) const {
  const OrtOpAttr* attribute = nullptr;
  int64_t values[8] = {};
  size_t bytes = 0;
  if (!succeeded(api_, api_.ShapeInferContext_GetAttribute(context_, name, &attribute)) ||
      !succeeded(api_, api_.ReadOpAttr(attribute, static_cast<int>(kIntsAttribute), values,
                                       sizeof values, &bytes)) ||
      bytes > sizeof values) {
    return std::nullopt;
  }
  return std::vector<int64_t>(values, values + bytes / sizeof values[0]);
}

void ShapeInference::set_y(InferredShape y) const {
  const size_t rank = y.dims.size();
  std::vector<const char*> names(rank);
  for (size_t axis = 0; axis < rank; ++axis) {
    // The runtime writes an unnamed unknown dimension as the number -1, which breaks shape
    // inference of later nodes; a unique name is equally unknown.
    if (y.dims[axis] < 0 && y.names[axis].empty()) y.names[axis] = fresh_symbol();
    names[axis] = y.names[axis].c_str();
  }
  OrtTensorTypeAndShapeInfo* raw = nullptr;
  check(api_, api_.CreateTensorTypeAndShapeInfo(&raw));
  const Owned<OrtTensorTypeAndShapeInfo> info(
      raw, [this](OrtTensorTypeAndShapeInfo* owned) { api_.ReleaseTensorTypeAndShapeInfo(owned); });
  check(api_, api_.SetTensorElementType(info.get(), y.type));
  check(api_, api_.SetDimensions(info.get(), y.dims.data(), rank));
  check(api_, api_.SetSymbolicDimensions(info.get(), names.data(), rank));
  check(api_, api_.ShapeInferContext_SetOutputTypeShape(context_, size_t{0}, info.get()));
}

std::string packing_report(const PackedInfo& layout) {
  char time[32];
  std::snprintf(time, sizeof time, "%.1f ms", layout.seconds * 1e3);
  return layout.kernel + ": " + std::to_string(layout.bytes) +
         (layout.shared ? " bytes, shared with another layer, compared in "
                        : " bytes, packed in ") +
         time;
}

void warn_of_variable_weights(const KernelInfo& info, const std::string& node,
                              const std::string& names) {
  info.log(kWarning,
           node + ": not constant: " + names +
               "; so nothing is packed, and every run validates the weights and takes the slow "
               "plain path; make them initializers that are not graph inputs");
}

const OrtValue* context_input(const Runtime& runtime, const OrtKernelContext* context,
                              size_t index) {
  const OrtValue* value = nullptr;
  check(runtime.api, runtime.api.KernelContext_GetInput(context, index, &value));
  return value;
}

void* context_output(const Runtime& runtime, OrtKernelContext* context, const Shape& shape) {
  OrtValue* value = nullptr;
  check(runtime.api,
        runtime.api.KernelContext_GetOutput(context, size_t{0}, shape.dims, shape.rank, &value));
  void* data = nullptr;
  check(runtime.api, runtime.api.GetTensorMutableData(value, &data));
  return data;
}

}  // namespace fanin::ort
