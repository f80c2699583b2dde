#include "cuda/kernels.h"
#include "cuda/launch.cuh"

namespace fanin::cuda {

const void* expand_conv_kernel_bf16(const ExpandKey& key) {
  return expand_conv_kernel_of<Bfloat16>(key);
}

}  // namespace fanin::cuda
