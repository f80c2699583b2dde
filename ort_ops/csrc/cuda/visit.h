// All instances of the thread programs, by their run-time description. Device tables and the
// emulation use the same lists.
#pragma once

#include "cuda/delta_kernel.h"
#include "cuda/expand_kernel.h"
#include "cuda/panel_kernel.h"
#include "cuda/stream_kernel.h"
#include "cuda/types.h"

namespace fanin::cuda {

// A value that stands for a type.
template <typename T>
struct Kernel {
  using Program = T;
};

struct StreamKey {
  ValueType values = ValueType::kFloat32;
  int index_bytes = 2;
  int samples = 1;
  bool staged = true;
};

template <typename X, typename Visit>
auto visit_stream(const StreamKey& key, const Visit& visit) {
  return visit_type(key.values, [&](auto value) {
    using Value = decltype(value);
    if (!key.staged)
      return key.index_bytes == 2 ? visit(Kernel<StreamKernel<Value, X, uint16_t, 1, false>>{})
                                  : visit(Kernel<StreamKernel<Value, X, uint32_t, 1, false>>{});
    switch (key.samples) {
      case 8:
        return visit(Kernel<StreamKernel<Value, X, uint16_t, 8, true>>{});
      case 4:
        return visit(Kernel<StreamKernel<Value, X, uint16_t, 4, true>>{});
      case 2:
        return visit(Kernel<StreamKernel<Value, X, uint16_t, 2, true>>{});
      default:
        return visit(Kernel<StreamKernel<Value, X, uint16_t, 1, true>>{});
    }
  });
}

struct DeltaKey {
  ValueType values = ValueType::kFloat32;
  int samples = 1;
};

template <typename X, typename Visit>
auto visit_delta(const DeltaKey& key, const Visit& visit) {
  return visit_type(key.values, [&](auto value) {
    using Value = decltype(value);
    switch (key.samples) {
      case 4:
        return visit(Kernel<DeltaKernel<Value, X, 4>>{});
      case 2:
        return visit(Kernel<DeltaKernel<Value, X, 2>>{});
      default:
        return visit(Kernel<DeltaKernel<Value, X, 1>>{});
    }
  });
}

template <typename X, typename Visit>
auto visit_panel(bool vector_x, const Visit& visit) {
  return vector_x ? visit(Kernel<PanelKernel<X, true>>{}) : visit(Kernel<PanelKernel<X, false>>{});
}

struct ExpandKey {
  int tile = 8;
  bool vector_x = false;
};

template <typename X, bool kVectorX, typename Visit>
auto visit_expand_tile(int tile, const Visit& visit) {
  switch (tile) {
    case 8:
      return visit(Kernel<ExpandKernel<X, 8, kVectorX>>{});
    case 16:
      return visit(Kernel<ExpandKernel<X, 16, kVectorX>>{});
    case 32:
      return visit(Kernel<ExpandKernel<X, 32, kVectorX>>{});
    case 64:
      return visit(Kernel<ExpandKernel<X, 64, kVectorX>>{});
    default:
      return visit(Kernel<ExpandKernel<X, 128, kVectorX>>{});
  }
}

template <typename X, typename Visit>
auto visit_expand(const ExpandKey& key, const Visit& visit) {
  return key.vector_x ? visit_expand_tile<X, true>(key.tile, visit)
                      : visit_expand_tile<X, false>(key.tile, visit);
}

}  // namespace fanin::cuda
