#include "cuda/kernels.h"
#include "cuda/launch.cuh"

namespace fanin::cuda {

const void* expand_kernel_tf32(const ExpandKey& key) { return expand_kernel_of<float>(key); }

}  // namespace fanin::cuda
