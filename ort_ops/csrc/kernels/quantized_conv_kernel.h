// The interface of all kernel families of the dispatch table of convolutions of int8 weights.
#pragma once

#include "core/quantized_conv.h"
#include "kernels/gemm_kernel.h"

namespace fanin {

// One convolution in one layout. Read-only after packing, so threads may share it.
class QuantizedConvKernel {
 public:
  virtual ~QuantizedConvKernel() = default;

  // See PackedQuantizedConv::run. Correct for every size and both orders of the axes.
  virtual void run(const QuantizedImages& x, void* y, const QuantizedEpilogue& epilogue,
                   const Executor& executor) const = 0;

  // How run() would share an input of this size among `threads` threads.
  virtual WorkPlan plan(const ConvInput& input, size_t threads,
                        const DispatchCost& dispatch) const = 0;

  virtual LayoutInfo info() const = 0;

  // See LayerKernel::holds.
  virtual bool holds(const CondensedView& view, const ConvGeometry& geometry) const = 0;
};

}  // namespace fanin
