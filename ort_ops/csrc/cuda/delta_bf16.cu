#include "cuda/kernels.h"
#include "cuda/launch.cuh"

namespace fanin::cuda {

const void* delta_kernel_bf16(const DeltaKey& key) { return delta_kernel_of<Bfloat16>(key); }

}  // namespace fanin::cuda
