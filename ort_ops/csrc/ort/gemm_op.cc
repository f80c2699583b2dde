#include "ort/gemm_op.h"

#include <atomic>
#include <cstdio>
#include <limits>
#include <vector>

#include "ort/condensed_gemm_inputs.h"
#include "ort/status.h"

namespace fanin::ort {
namespace {

// A dimension name that no other dimension has.
std::string fresh_symbol() {
  static std::atomic<uint64_t> count{0};
  return "fanin_unknown_" + std::to_string(count++);
}

// Y has the shape of X with out_features last; symbolic dimensions keep their names. What cannot be
// told here is left open: an error in a node is told at its creation, which knows the node's name.
OrtStatus* infer_shape(const OrtCustomOp* op, OrtShapeInferContext* context) noexcept {
  const Api& api = static_cast<const GemmOp*>(op)->runtime.api;
  return guarded(api, kGemmName, [&] {
    const OrtOpAttr* attribute = nullptr;
    int64_t out_features = 0;
    size_t bytes = 0;
    if (!succeeded(api, api.ShapeInferContext_GetAttribute(context, "out_features", &attribute)) ||
        !succeeded(api, api.ReadOpAttr(attribute, static_cast<int>(kIntAttribute), &out_features,
                                       sizeof out_features, &bytes)) ||
        out_features < 1) {
      return;
    }
    OrtTensorTypeAndShapeInfo* x = nullptr;  // belongs to the context
    check(api, api.ShapeInferContext_GetInputTypeShape(context, size_t{0}, &x));
    int type = kUndefined;
    size_t rank = 0;
    check(api, api.GetTensorElementType(x, &type));
    check(api, api.GetDimensionsCount(x, &rank));
    if (rank == 0) return;  // unknown
    std::vector<int64_t> dims(rank);
    std::vector<const char*> names(rank);
    check(api, api.GetDimensions(x, dims.data(), rank));
    check(api, api.GetSymbolicDimensions(x, names.data(), rank));
    dims.back() = out_features;
    names.back() = "";
    // The runtime writes an unnamed unknown dimension as the number -1, which breaks the inference
    // of later nodes; a name of its own says as little as no name.
    std::vector<std::string> made_up(rank);
    for (size_t axis = 0; axis + 1 < rank; ++axis) {
      if (dims[axis] >= 0 || *names[axis] != '\0') continue;
      made_up[axis] = fresh_symbol();
      names[axis] = made_up[axis].c_str();
    }

    OrtTensorTypeAndShapeInfo* raw = nullptr;
    check(api, api.CreateTensorTypeAndShapeInfo(&raw));
    const Owned<OrtTensorTypeAndShapeInfo> y(
        raw, [&api](OrtTensorTypeAndShapeInfo* info) { api.ReleaseTensorTypeAndShapeInfo(info); });
    check(api, api.SetTensorElementType(y.get(), type));
    check(api, api.SetDimensions(y.get(), dims.data(), rank));
    check(api, api.SetSymbolicDimensions(y.get(), names.data(), rank));
    check(api, api.ShapeInferContext_SetOutputTypeShape(context, size_t{0}, y.get()));
  });
}

ElementType input_type(const OrtCustomOp* op, size_t index) noexcept {
  switch (static_cast<Input>(index)) {
    case kValues:
    case kIndices:
      return kUndefined;  // several types; create() refuses any other by name
    case kRows:
      return kInt32;
    case kBias:
      return kFloat;
    default:
      return static_cast<const GemmOp*>(op)->type;
  }
}

}  // namespace

GemmOp::GemmOp(const Runtime& owner, ElementType activations)
    : OrtCustomOp{}, runtime(owner), type(activations) {
  version = kApiVersion;
  GetName = [](const OrtCustomOp*) { return kGemmName; };
  GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };  // CPU
  GetInputType = input_type;
  GetInputTypeCount = [](const OrtCustomOp*) -> size_t { return kInputCount; };
  GetOutputType = [](const OrtCustomOp* op, size_t) {
    return static_cast<const GemmOp*>(op)->type;
  };
  GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
  GetInputCharacteristic = [](const OrtCustomOp*, size_t) { return kRequired; };
  GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return kRequired; };
  GetInputMemoryType = [](const OrtCustomOp*, size_t) { return kDefaultMemory; };
  GetStartVersion = [](const OrtCustomOp*) { return 1; };
  GetEndVersion = [](const OrtCustomOp*) { return std::numeric_limits<int>::max(); };
  InferOutputShapeFn = infer_shape;
}

std::string packing_report(const PackedInfo& layout) {
  char time[32];
  std::snprintf(time, sizeof time, "%.1f ms", layout.seconds * 1e3);
  return layout.kernel + ": " + std::to_string(layout.bytes) +
         (layout.shared ? " bytes, shared with another layer, compared in "
                        : " bytes, packed in ") +
         time;
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

void check_batch(int64_t batch, const BatchRange& packed, const Shape& x) {
  if (batch >= packed.min && batch <= packed.max) return;
  throw Error(kInvalidArgument,
              "X has shape " + to_string(x) +
                  ", which contradicts the shape that the model declares for it; correct the "
                  "model's shapes, or make the dimension symbolic");
}

}  // namespace fanin::ort
