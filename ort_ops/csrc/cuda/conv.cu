#include "cuda/conv_kernel.h"
#include "cuda/kernels.h"
#include "cuda/launch.cuh"

namespace fanin::cuda {

const void* conv_kernel(ValueType activations) {
  return visit_type(activations,
                    [](auto x) { return address_of<ConvKernel<decltype(x)>, ConvArgs>(); });
}

}  // namespace fanin::cuda
