// CondensedConv through the CUDA thread programs on the host, see gemm.h.
#pragma once

#include "core/condensed.h"
#include "core/conv_geometry.h"
#include "cuda/emulation/gemm.h"
#include "cuda/plan.h"

namespace fanin::cuda::emulation {

// Writes run.y. `blocks`: a grid that replaces that of the direct kernel's plan; 0 for the plan's.
// Throws as run_gemm, and std::length_error as PackedConv::run.
Report run_conv(const CondensedView& view, const ConvGeometry& geometry, const ConvInput& input,
                const Request& request, int64_t blocks, const RunArguments& run);

}  // namespace fanin::cuda::emulation
