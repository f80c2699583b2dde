#include "ort/condensed_gemm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/condensed.h"
#include "core/gemm.h"
#include "ort/condensed_gemm_inputs.h"
#include "ort/executor.h"
#include "ort/kernel_info.h"
#include "ort/status.h"
#include "ort/tensor.h"
#include "ort/threads.h"

namespace fanin::ort {
namespace {

constexpr const char* kName = "CondensedGemm";

// The layer of one node. Read-only after creation: a session may be run from many threads.
class CondensedGemm {
 public:
  CondensedGemm(const Runtime& runtime, const KernelInfo& info, std::string node,
                std::optional<int> threads);

  void compute(OrtKernelContext* context) const;
  const Runtime& runtime() const { return runtime_; }
  const std::string& node() const { return node_; }

 private:
  Tensor input(const OrtKernelContext* context, Input index) const;
  const float* residual_of(const Tensor& residual, const Shape& y) const;

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

  const DeclaredInputs declared = check_declared(info, attributes_);
  batches_ = declared.batches;
  if (!declared.variable_weights.empty()) {
    info.warn(node_ + ": " + declared.variable_weights +
              " not constant, so that nothing is packed and every run validates the weights and "
              "takes the slow plain path; make them initializers that are not graph inputs");
    return;
  }
  const WeightTensors weights(runtime, [&](Input index) { return info.constant(index); });
  const CondensedView view = weights.checked_view(attributes_);
  packed_ = PackedGemm::pack(view, batches_, select_isa());
}

Tensor CondensedGemm::input(const OrtKernelContext* context, Input index) const {
  const OrtValue* value = nullptr;
  check(runtime_.api, runtime_.api.KernelContext_GetInput(context, size_t{index}, &value));
  return Tensor(runtime_, value);
}

// A residual of Y's shape is added. One of shape [1] stands for "none" and must hold 0; where Y
// itself has shape [1] it is added like any other.
const float* CondensedGemm::residual_of(const Tensor& residual, const Shape& y) const {
  if (residual.shape() == y) return residual.data<float>();
  if (residual.shape().rank != 1 || residual.shape()[0] != 1) {
    throw Error(kInvalidArgument, "residual has shape " + to_string(residual.shape()) +
                                      ", it must have the output's shape " + to_string(y) +
                                      ", or shape [1] holding 0 for none");
  }
  const float value = *residual.data<float>();
  if (value != 0.0f) {
    throw Error(kInvalidArgument, "residual has shape [1] and holds " + std::to_string(value) +
                                      "; with that shape it must hold 0, for none (the output's "
                                      "shape is " +
                                      to_string(y) + ")");
  }
  return nullptr;
}

void CondensedGemm::compute(OrtKernelContext* context) const {
  const Tensor x = input(context, kX);
  check_x(x.shape(), attributes_);
  const int64_t batch = batch_of(x.shape());

  std::vector<int64_t> dims(x.shape().dims, x.shape().dims + x.shape().rank);
  dims.back() = attributes_.out_features;
  const Shape y_shape{dims.data(), dims.size()};

  const Tensor residual = input(context, kResidual);
  Epilogue epilogue;
  epilogue.residual = residual_of(residual, y_shape);
  epilogue.clip_min = attributes_.clip_min;
  epilogue.clip_max = attributes_.clip_max;

  OrtValue* y = nullptr;
  check(runtime_.api,
        runtime_.api.KernelContext_GetOutput(context, size_t{0}, y_shape.dims, y_shape.rank, &y));
  void* out = nullptr;
  check(runtime_.api, runtime_.api.GetTensorMutableData(y, &out));

  if (!packed_) {
    const WeightTensors weights(runtime_, [&](Input index) {
      const OrtValue* value = nullptr;
      check(runtime_.api, runtime_.api.KernelContext_GetInput(context, size_t{index}, &value));
      return value;
    });
    const CondensedView view = weights.checked_view(attributes_);
    run_plain(view, x.data<float>(), batch, static_cast<float*>(out), epilogue);
    return;
  }
  if (batch == 0) return;
  if (batch < batches_.min || batch > batches_.max) {
    throw Error(kInvalidArgument,
                "X has shape " + to_string(x.shape()) +
                    ", which contradicts the shape that the model declares for it; correct the "
                    "model's shapes, or make the dimension symbolic");
  }
  packed_->run(x.data<float>(), batch, static_cast<float*>(out), epilogue,
               SessionExecutor(runtime_, context, concurrency_));
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

ElementType input_type(const OrtCustomOp*, size_t index) noexcept {
  switch (static_cast<Input>(index)) {
    case kIndices:
      return kUndefined;  // uint16 or int32; create() refuses any other by name
    case kRows:
      return kInt32;
    default:
      return kFloat;
  }
}

}  // namespace

CondensedGemmOp::CondensedGemmOp(const Runtime& owner, std::optional<int> session_threads)
    : OrtCustomOp{}, runtime(owner), threads(session_threads) {
  version = kApiVersion;
  GetName = [](const OrtCustomOp*) { return kName; };
  GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };  // CPU
  GetInputType = input_type;
  GetInputTypeCount = [](const OrtCustomOp*) -> size_t { return kInputCount; };
  GetOutputType = [](const OrtCustomOp*, size_t) { return kFloat; };
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
