// Running a layer of int8 weights in the window layout.
#pragma once

#include "kernels/quantized_kernel.h"
#include "kernels/quantized_window_ops.h"

namespace fanin {

std::unique_ptr<QuantizedKernel> pack_quantized_window_gemm(const CondensedView& view,
                                                            const QuantizedWindowOps& ops,
                                                            const Executor& executor);

}  // namespace fanin
