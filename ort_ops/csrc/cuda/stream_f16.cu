#include "cuda/kernels.h"
#include "cuda/launch.cuh"

namespace fanin::cuda {

const void* stream_kernel_f16(const StreamKey& key) { return stream_kernel_of<Float16>(key); }

}  // namespace fanin::cuda
