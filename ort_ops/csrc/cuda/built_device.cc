#include "cuda/built_device.h"

#include <cuda_runtime_api.h>

#include "cuda/device_memory.h"
#include "cuda/kernels.h"

namespace fanin::cuda {

DeviceLimits built_limits(int device) {
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, expand_kernel_bf16({})), "cudaFuncGetAttributes");
  return limits_for_build(limits_of(device), attributes.ptxVersion);
}

void allow_shared_memory(const void* kernel, const DeviceLimits& limits) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(limits.shared_bytes_per_block)),
        "cudaFuncSetAttribute");
}

}  // namespace fanin::cuda
