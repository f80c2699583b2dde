// The panel family: batches, with x transposed so that a vector holds samples.
#pragma once

#include "kernels/gemm_kernel.h"
#include "kernels/panel_ops.h"

namespace fanin {

std::unique_ptr<GemmKernel> pack_panel_gemm(const CondensedView& view, const PanelOps& ops,
                                            const Executor& executor);

}  // namespace fanin
