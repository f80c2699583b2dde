#include "ort/condensed_gemm.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/condensed.h"
#include "core/float16_run.h"
#include "core/gemm.h"
#include "core/thread_executor.h"
#include "ort/condensed_gemm_inputs.h"
#include "ort/executor.h"
#include "ort/kernel_info.h"
#include "ort/status.h"
#include "ort/tensor.h"
#include "ort/threads.h"

namespace fanin::ort {
namespace {

constexpr const char* kName = "CondensedGemm";

// "f32-gemm-...: 1440128 bytes, packed in 8.1 ms"
std::string report(const PackedInfo& layout) {
  char time[32];
  std::snprintf(time, sizeof time, "%.1f ms", layout.seconds * 1e3);
  return layout.kernel + ": " + std::to_string(layout.bytes) +
         (layout.shared ? " bytes, shared with another layer, compared in "
                        : " bytes, packed in ") +
         time;
}

// The layer of one node. Read-only after creation: a session may be run from many threads.
class CondensedGemm {
 public:
  CondensedGemm(const Runtime& runtime, const KernelInfo& info, std::string node,
                std::optional<int> threads);

  void compute(OrtKernelContext* context) const;
  const Runtime& runtime() const { return runtime_; }
  const std::string& node() const { return node_; }

 private:
  const OrtValue* input(const OrtKernelContext* context, Input index) const;
  void* output(OrtKernelContext* context, const Shape& shape) const;

  const Runtime& runtime_;
  const std::string node_;
  GemmAttributes attributes_;
  size_t concurrency_ = 1;
  BatchRange batches_;
  std::unique_ptr<PackedGemm> packed_;  // null: the weights are not constant
};

CondensedGemm::CondensedGemm(const Runtime& runtime, const KernelInfo& info, std::string node,
                             std::optional<int> threads)
    : runtime_(runtime), node_(std::move(node)), attributes_(read_attributes(info)) {
  if (const std::optional<int> told = threads_of_session(runtime, info.get())) threads = told;
  concurrency_ =
      static_cast<size_t>(std::min(threads.value_or(available_cpus()), available_cpus()));

  const DeclaredInputs declared = check_declared(runtime, info, attributes_);
  batches_ = declared.batches;
  if (!declared.variable_weights.empty()) {
    info.log(kWarning,
             node_ + ": not constant: " + declared.variable_weights +
                 "; so nothing is packed, and every run validates the weights and takes the slow "
                 "plain path; make them initializers that are not graph inputs");
    return;
  }
  const WeightTensors weights(runtime, [&](Input index) { return info.constant(index); });
  const CondensedView view = weights.checked_view(attributes_);
  packed_ = PackedGemm::pack(view, batches_, select_isa(), ThreadExecutor(concurrency_));
  for (const PackedInfo& layout : packed_->info()) info.log(kInfo, node_ + ": " + report(layout));
}

const OrtValue* CondensedGemm::input(const OrtKernelContext* context, Input index) const {
  const OrtValue* value = nullptr;
  check(runtime_.api, runtime_.api.KernelContext_GetInput(context, size_t{index}, &value));
  return value;
}

void* CondensedGemm::output(OrtKernelContext* context, const Shape& shape) const {
  OrtValue* value = nullptr;
  check(runtime_.api,
        runtime_.api.KernelContext_GetOutput(context, size_t{0}, shape.dims, shape.rank, &value));
  void* data = nullptr;
  check(runtime_.api, runtime_.api.GetTensorMutableData(value, &data));
  return data;
}

void CondensedGemm::compute(OrtKernelContext* context) const {
  const Tensor x(runtime_, input(context, kX));
  check_x(x.shape(), attributes_);
  const int64_t batch = batch_of(x.shape());

  const std::vector<int64_t> dims = output_dims(x.shape(), attributes_);
  const Shape y_shape{dims.data(), dims.size()};
  const Tensor residual(runtime_, input(context, kResidual));
  const void* add = residual_data(residual, y_shape);
  void* y = output(context, y_shape);

  // Variable weights are checked for an empty batch, too.
  std::optional<WeightTensors> variable;
  CondensedView view;
  if (!packed_) {
    variable.emplace(runtime_, [&](Input index) { return input(context, index); });
    view = variable->checked_view(attributes_);
  }
  if (batch == 0) return;
  if (packed_ && (batch < batches_.min || batch > batches_.max)) {
    throw Error(kInvalidArgument,
                "X has shape " + to_string(x.shape()) +
                    ", which contradicts the shape that the model declares for it; correct the "
                    "model's shapes, or make the dimension symbolic");
  }
  const SessionExecutor executor(runtime_, context, concurrency_);
  const auto run = [&](const Float32Slice& slice) {
    const Epilogue epilogue{slice.residual, attributes_.clip_min, attributes_.clip_max};
    if (packed_)
      packed_->run(slice.x, slice.batch, slice.y, epilogue, executor);
    else
      run_plain(view, slice.x, slice.batch, slice.y, epilogue);
  };
  if (x.type() == kFloat16)
    run_float16({x.data<uint16_t>(), static_cast<const uint16_t*>(add), static_cast<uint16_t*>(y),
                 batch, attributes_.in_features, attributes_.out_features},
                executor, run);
  else
    run({x.data<float>(), static_cast<const float*>(add), static_cast<float*>(y), batch});
}

// The callbacks. None lets an exception out.

OrtStatus* create(const OrtCustomOp* op, const OrtApi*, const OrtKernelInfo* raw,
                  void** kernel) noexcept {
  const auto& self = *static_cast<const CondensedGemmOp*>(op);
  std::string node = kName;
  return guarded(self.runtime.api, node, [&] {
    const KernelInfo info(self.runtime, raw);
    node = info.node(kName);
    *kernel = new CondensedGemm(self.runtime, info, node, self.threads);
  });
}

OrtStatus* compute(void* kernel, OrtKernelContext* context) noexcept {
  const auto& self = *static_cast<const CondensedGemm*>(kernel);
  return guarded(self.runtime().api, self.node(), [&] { self.compute(context); });
}

void destroy(void* kernel) noexcept { delete static_cast<CondensedGemm*>(kernel); }

// A dimension name that no other dimension has.
std::string fresh_symbol() {
  static std::atomic<uint64_t> count{0};
  return "fanin_unknown_" + std::to_string(count++);
}

// Y has the shape of X with out_features last; symbolic dimensions keep their names. What cannot be
// told here is left open: an error in a node is told at its creation, which knows the node's name.
OrtStatus* infer_shape(const OrtCustomOp* op, OrtShapeInferContext* context) noexcept {
  const Api& api = static_cast<const CondensedGemmOp*>(op)->runtime.api;
  return guarded(api, kName, [&] {
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
      return static_cast<const CondensedGemmOp*>(op)->type;
  }
}

}  // namespace

CondensedGemmOp::CondensedGemmOp(const Runtime& owner, ElementType activations,
                                 std::optional<int> session_threads)
    : OrtCustomOp{}, runtime(owner), type(activations), threads(session_threads) {
  version = kApiVersion;
  GetName = [](const OrtCustomOp*) { return kName; };
  GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };  // CPU
  GetInputType = input_type;
  GetInputTypeCount = [](const OrtCustomOp*) -> size_t { return kInputCount; };
  GetOutputType = [](const OrtCustomOp* op, size_t) {
    return static_cast<const CondensedGemmOp*>(op)->type;
  };
  GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
  GetInputCharacteristic = [](const OrtCustomOp*, size_t) { return kRequired; };
  GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return kRequired; };
  GetInputMemoryType = [](const OrtCustomOp*, size_t) { return kDefaultMemory; };
  GetStartVersion = [](const OrtCustomOp*) { return 1; };
  GetEndVersion = [](const OrtCustomOp*) { return std::numeric_limits<int>::max(); };
  CreateKernelV2 = create;
  KernelComputeV2 = compute;
  KernelDestroy = destroy;
  InferOutputShapeFn = infer_shape;
}

}  // namespace fanin::ort
