#include "ort/condensed_gemm_cuda.h"

#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "core/condensed.h"
#include "cuda/gemm.h"
#include "ort/condensed_gemm_inputs.h"
#include "ort/cuda_device.h"
#include "ort/kernel_info.h"
#include "ort/status.h"
#include "ort/tensor.h"

namespace fanin::ort {
namespace {

// A constant's first element, wherever the runtime put it. Only at creation.
float constant_scalar(const Tensor& tensor) {
  const ValueType type = value_type_of(tensor.type(), kResidual);
  uint32_t bits = 0;
  copy_to_host(&bits, tensor.data<void>(), value_bytes(type));
  return load_value(&bits, type, 0);
}

// The device of the session's CUDA provider, which is that of its allocator.
int device_of(const Runtime& runtime, const OrtKernelInfo* info) {
  const Api& api = runtime.api;
  OrtAllocator* raw = nullptr;
  check(api, api.KernelInfoGetAllocator(info, kDefaultMemory, &raw));
  const Owned<OrtAllocator> allocator(raw,
                                      [&api](OrtAllocator* owned) { api.ReleaseAllocator(owned); });
  const OrtMemoryInfo* memory = nullptr;
  check(api, api.AllocatorGetInfo(allocator.get(), &memory));
  int device = 0;
  check(api, api.MemoryInfoGetId(memory, &device));
  return device;
}

// A weight that packing can read. The op asks for its weights on the host (GetInputMemoryType).
const OrtValue* host_constant(const Runtime& runtime, const KernelInfo& info, Input index) {
  const OrtValue* value = info.constant(index);
  const OrtMemoryInfo* memory = nullptr;
  check(runtime.api, runtime.api.GetTensorMemoryInfo(value, &memory));
  DeviceType place = kCpuDevice;
  runtime.api.MemoryInfoGetDeviceType(memory, &place);
  if (place == kCpuDevice) return value;
  throw Error(kFail, std::string(input_name(index)) +
                         " lies in device memory, though the op asks for it on the host; report "
                         "this with the version of onnxruntime");
}

// The layer of one node on one device. Read-only after creation: a session may be run from many
// threads.
class CudaGemm {
 public:
  CudaGemm(const Runtime& runtime, const KernelInfo& info, std::string node, ElementType type);

  void compute(OrtKernelContext* context) const;
  const Runtime& runtime() const { return runtime_; }
  const std::string& node() const { return node_; }

 private:
  void pack(const KernelInfo& info, ValueType activations);
  bool adds(const Shape& residual, const Shape& y) const;

  const Runtime& runtime_;
  const std::string node_;
  const GemmAttributes attributes_;
  const int device_;
  BatchRange batches_;
  bool constant_residual_ = false;
  std::unique_ptr<cuda::PackedGemm> packed_;
};

CudaGemm::CudaGemm(const Runtime& runtime, const KernelInfo& info, std::string node,
                   ElementType type)
    : runtime_(runtime),
      node_(std::move(node)),
      attributes_(read_attributes(info)),
      device_(device_of(runtime, info.get())) {
  const DeviceGuard guard(device_);
  const DeclaredInputs declared = check_declared(runtime, info, attributes_, constant_scalar);
  if (!declared.variable_weights.empty()) {
    throw Error(kInvalidArgument,
                "not constant: " + declared.variable_weights +
                    "; the CUDA op packs its weights at session creation: make them initializers "
                    "that are not graph inputs, or run this model on CPUExecutionProvider");
  }
  batches_ = declared.batches;
  constant_residual_ = info.constant(kResidual) != nullptr;
  const InputInfo x = info.input(kX), residual = info.input(kResidual);
  if (!x.dims.empty() && !residual.dims.empty()) {
    const std::vector<int64_t> y = output_dims(x.shape(), attributes_);
    adds(residual.shape(), {y.data(), y.size()});
  }
  pack(info, value_type_of(type, kX));
}

void CudaGemm::pack(const KernelInfo& info, ValueType activations) {
  const WeightTensors weights(runtime_,
                              [&](Input index) { return host_constant(runtime_, info, index); });
  const CondensedView view = weights.checked_view(attributes_);
  try {
    packed_ = cuda::PackedGemm::pack(view, batches_, activations, device_);
  } catch (const std::bad_alloc& error) {  // says how many bytes, which guarded() would drop
    throw Error(kFail, std::string("out of memory on device ") + std::to_string(device_) + ": " +
                           error.what());
  }
  for (const PackedInfo& layout : packed_->info()) {
    info.log(kInfo, node_ + ": " + packing_report(layout) + ", on CUDA device " +
                        std::to_string(device_) + ", outside the session's arena");
  }
}

// A run never reads the residual on the host, which would wait for the device. So a residual that
// stands for none must be a constant, whose 0 was seen at creation.
bool CudaGemm::adds(const Shape& residual, const Shape& y) const {
  if (adds_residual(residual, y)) return true;
  if (!constant_residual_) {
    throw Error(kInvalidArgument,
                "residual has shape [1], which stands for none, and is not constant; the CUDA op "
                "takes none only from an initializer holding 0 that is not a graph input (the "
                "output's shape is " +
                    to_string(y) + ")");
  }
  return false;
}

void CudaGemm::compute(OrtKernelContext* context) const {
  const Tensor x(runtime_, context_input(runtime_, context, kX));
  check_x(x.shape(), attributes_);
  const int64_t batch = batch_of(x.shape());

  const std::vector<int64_t> dims = output_dims(x.shape(), attributes_);
  const Shape y_shape{dims.data(), dims.size()};
  const Tensor residual(runtime_, context_input(runtime_, context, kResidual));
  const void* add = adds(residual.shape(), y_shape) ? residual.data<void>() : nullptr;
  void* y = context_output(runtime_, context, y_shape);
  if (batch == 0) return;
  check_batch(batch, batches_, x.shape());

  void* stream = nullptr;
  check(runtime_.api, runtime_.api.KernelContext_GetGPUComputeStream(context, &stream));
  const DeviceGuard guard(device_);
  packed_->run(x.data<void>(), batch, y, {add, attributes_.clip_min, attributes_.clip_max}, stream);
}

// The callbacks. None lets an exception out.

OrtStatus* create(const OrtCustomOp* op, const OrtApi*, const OrtKernelInfo* raw,
                  void** kernel) noexcept {
  const auto& self = *static_cast<const CudaGemmOp*>(op);
  std::string node = kGemmName;
  return guarded(self.runtime.api, node, [&] {
    const KernelInfo info(self.runtime, raw);
    node = info.node(kGemmName);
    *kernel = new CudaGemm(self.runtime, info, node, self.type);
  });
}

OrtStatus* compute(void* kernel, OrtKernelContext* context) noexcept {
  const auto& self = *static_cast<const CudaGemm*>(kernel);
  return guarded(self.runtime().api, self.node(), [&] { self.compute(context); });
}

void destroy(void* kernel) noexcept { delete static_cast<CudaGemm*>(kernel); }

}  // namespace

CudaGemmOp::CudaGemmOp(const Runtime& owner, ElementType activations) : GemmOp(owner, activations) {
  GetExecutionProviderType = [](const OrtCustomOp*) { return "CUDAExecutionProvider"; };
  // Weights stay on the host, where packing reads them: a run needs none of them.
  GetInputMemoryType = [](const OrtCustomOp*, size_t index) {
    return index == kX || index == kResidual ? kDefaultMemory : kCpuInput;
  };
  CreateKernelV2 = create;
  KernelComputeV2 = compute;
  KernelDestroy = destroy;
}

}  // namespace fanin::ort
