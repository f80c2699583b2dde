// The interface of all kernel families of the dispatch table of int8 layers.
#pragma once

#include "core/quantized_gemm.h"
#include "kernels/gemm_kernel.h"

namespace fanin {

class QuantizedKernel : public LayerKernel {
 public:
  // See PackedQuantizedGemm::run. Correct for every batch, even outside its range in the table.
  virtual void run(const QuantizedInput& x, int64_t batch, void* y,
                   const QuantizedEpilogue& epilogue, const Executor& executor) const = 0;
};

}  // namespace fanin
