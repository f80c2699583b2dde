#include "ort/cuda_op.h"

namespace fanin::ort {

void set_cuda(CondensedOp& op) {
  op.GetExecutionProviderType = [](const OrtCustomOp*) { return "CUDAExecutionProvider"; };
  op.GetInputMemoryType = [](const OrtCustomOp* self, size_t index) {
    const OpSchema& schema = static_cast<const CondensedOp*>(self)->schema;
    return schema.inputs[index].typed_as == TypedAs::kItself ? kCpuInput : kDefaultMemory;
  };
}

float constant_scalar(const Tensor& tensor) {
  const ValueType type = value_type_of(tensor.type(), "residual");
  uint32_t bits = 0;
  copy_to_host(&bits, tensor.data<void>(), value_bytes(type));
  return load_value(&bits, type, 0);
}

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

void refuse_variable_weights(const std::string& names) {
  if (names.empty()) return;
  refuse("not constant: " + names +
         "; the CUDA op packs its weights at session creation: make them initializers that are not "
         "graph inputs, or run this model on CPUExecutionProvider");
}

const OrtValue* host_constant(const CondensedOp& op, const KernelInfo& info, size_t index) {
  const Runtime& runtime = op.runtime;
  const OrtValue* value = info.constant(index);
  const OrtMemoryInfo* memory = nullptr;
  check(runtime.api, runtime.api.GetTensorMemoryInfo(value, &memory));
  DeviceType place = kCpuDevice;
  runtime.api.MemoryInfoGetDeviceType(memory, &place);
  if (place == kCpuDevice) return value;
  throw Error(kFail, std::string(op.schema.inputs[index].name) +
                         " lies in device memory, though the op asks for it on the host; report "
                         "this with the version of onnxruntime");
}

bool adds_residual_on_device(const Shape& residual, const Shape& y, bool is_constant) {
  if (adds_residual(residual, y)) return true;
  if (!is_constant) {
    refuse(
        "residual has shape [1], which stands for none, and is not constant; the CUDA op takes "
        "none only from an initializer holding 0 that is not a graph input (the output's shape "
        "is " +
        to_string(y) + ")");
  }
  return false;
}

bool allows_tf32(const Runtime& runtime, const OrtKernelContext* context) {
  // The numbers of the runtime's enumeration CudaResource since 1.18, where the option is the whole
  // pointer.
  constexpr int kVersion = 3, kUseTf32 = 10011;
  void* value = nullptr;
  OrtStatus* status = runtime.api.KernelContext_GetResource(context, kVersion, kUseTf32, &value);
  if (status == nullptr) return reinterpret_cast<uintptr_t>(value) == 1;
  runtime.api.ReleaseStatus(status);
  return false;
}

void log_packed(const KernelInfo& info, const std::string& node,
                const std::vector<PackedInfo>& layouts, int device) {
  for (const PackedInfo& layout : layouts) {
    info.log(kInfo, node + ": " + packing_report(layout) + ", on CUDA device " +
                        std::to_string(device) + ", outside the session's arena");
  }
}

}  // namespace fanin::ort
