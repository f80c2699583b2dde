// The window family: small batches, one pass over the weights.
#pragma once

#include "kernels/gemm_kernel.h"
#include "kernels/window_ops.h"

namespace fanin {

std::unique_ptr<GemmKernel> pack_window_gemm(const CondensedView& view, const WindowOps& ops,
                                             const Executor& executor);

}  // namespace fanin
