#include "cuda/kernels.h"
#include "cuda/launch.cuh"

namespace fanin::cuda {

const void* delta_kernel_f16(const DeltaKey& key) { return delta_kernel_of<Float16>(key); }

}  // namespace fanin::cuda
