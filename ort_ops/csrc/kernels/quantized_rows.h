// The rows kernel of int8 layers, as rows_gemm.h is of the others: for any CPU and density.
#pragma once

#include "kernels/quantized_kernel.h"

namespace fanin {

std::unique_ptr<QuantizedKernel> pack_quantized_rows(const CondensedView& view,
                                                     const Executor& executor);

}  // namespace fanin
