// The rows kernel: scalar code, row by row, in the layout of the condensed arrays, for any CPU and
// density.
#pragma once

#include "kernels/gemm_kernel.h"

namespace fanin {

std::unique_ptr<GemmKernel> pack_rows_gemm(const CondensedView& view, const Executor& executor);

}  // namespace fanin
