// The window kernels: small batches, one sweep over the weights.
#pragma once

#include "kernels/gemm_kernel.h"
#include "kernels/window_ops.h"

namespace fanin {

std::unique_ptr<GemmKernel> pack_window_gemm(const CondensedView& view, const WindowOps& ops,
                                             const Executor& executor);

}  // namespace fanin
