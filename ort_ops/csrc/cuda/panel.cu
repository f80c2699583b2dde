#include "cuda/kernels.h"
#include "cuda/launch.cuh"

namespace fanin::cuda {

const void* panel_kernel(ValueType activations, const PanelKey& key) {
  return visit_type(activations, [&key](auto x) {
    return visit_panel<decltype(x)>(key, [](auto kernel) {
      return address_of<typename decltype(kernel)::Program, PanelArgs>();
    });
  });
}

}  // namespace fanin::cuda
