#include "cuda/kernels.h"
#include "cuda/launch.cuh"

namespace fanin::cuda {

const void* panel_kernel(ValueType activations, bool vector_x) {
  return visit_type(activations, [vector_x](auto x) {
    return visit_panel<decltype(x)>(vector_x, [](auto kernel) {
      return address_of<typename decltype(kernel)::Program, PanelArgs>();
    });
  });
}

}  // namespace fanin::cuda
