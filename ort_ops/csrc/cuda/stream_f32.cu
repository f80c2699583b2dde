#include "cuda/kernels.h"
#include "cuda/launch.cuh"

namespace fanin::cuda {

const void* stream_kernel_f32(const StreamKey& key) { return stream_kernel_of<float>(key); }

}  // namespace fanin::cuda
