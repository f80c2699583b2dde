#include "cuda/built_device.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "cuda/device_memory.h"
#include "cuda/kernels.h"

namespace fanin::cuda {

DeviceLimits built_limits(int device) {
  DeviceLimits limits = limits_of(device);
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, expand_kernel_bf16({})), "cudaFuncGetAttributes");
  limits.capability = std::min<int64_t>(limits.capability, attributes.ptxVersion);
  return limits;
}

void allow_shared_memory(const void* kernel, const DeviceLimits& limits) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(limits.shared_bytes_per_block)),
        "cudaFuncSetAttribute");
}

}  // namespace fanin::cuda
