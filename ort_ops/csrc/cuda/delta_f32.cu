#include "cuda/kernels.h"
#include "cuda/launch.cuh"

namespace fanin::cuda {

const void* delta_kernel_f32(const DeltaKey& key) { return delta_kernel_of<float>(key); }

}  // namespace fanin::cuda
