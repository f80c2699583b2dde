// Panel kernels of int8 layers.
#pragma once

#include "kernels/quantized_kernel.h"
#include "kernels/quantized_panel_ops.h"

namespace fanin {

std::unique_ptr<QuantizedKernel> pack_quantized_panel_gemm(const CondensedView& view,
                                                           const QuantizedPanelOps& ops,
                                                           const Executor& executor);

}  // namespace fanin
