// Row by row: the layout of the condensed arrays themselves, for any CPU and any density.
#pragma once

#include "kernels/gemm_kernel.h"

namespace fanin {

std::unique_ptr<GemmKernel> pack_rows(const CondensedView& view, const Executor& executor);

}  // namespace fanin
