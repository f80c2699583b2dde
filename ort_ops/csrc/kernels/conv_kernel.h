// The interface of all kernel families of convolutions.
#pragma once

#include "core/condensed.h"
#include "core/conv.h"
#include "core/conv_geometry.h"
#include "core/executor.h"
#include "kernels/gemm_kernel.h"

namespace fanin {

// One convolution in one layout. Read-only after packing, so threads may share it.
class ConvKernel {
 public:
  virtual ~ConvKernel() = default;

  // See PackedConv::run. Correct for every size of the input.
  virtual void run(const float* x, const ConvInput& input, float* y, const ConvEpilogue& epilogue,
                   const Executor& executor) const = 0;

  // How run() would share an input of this size among `threads` threads.
  virtual WorkPlan plan(const ConvInput& input, size_t threads,
                        const DispatchCost& dispatch) const = 0;

  virtual LayoutInfo info() const = 0;

  // See GemmKernel::holds.
  virtual bool holds(const CondensedView& view, const ConvGeometry& geometry) const = 0;
};

}  // namespace fanin
