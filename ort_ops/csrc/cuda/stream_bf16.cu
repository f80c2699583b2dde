#include "cuda/kernels.h"
#include "cuda/launch.cuh"

namespace fanin::cuda {

const void* stream_kernel_bf16(const StreamKey& key) { return stream_kernel_of<Bfloat16>(key); }

}  // namespace fanin::cuda
