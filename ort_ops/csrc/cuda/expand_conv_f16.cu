#include "cuda/kernels.h"
#include "cuda/launch.cuh"

namespace fanin::cuda {

const void* expand_conv_kernel_f16(const ExpandKey& key) {
  return expand_conv_kernel_of<Float16>(key);
}

}  // namespace fanin::cuda
