// CondensedConv through the CUDA thread program on the host, see gemm.h.
#pragma once

#include <cstdint>

#include "core/condensed.h"
#include "core/conv_geometry.h"
#include "cuda/plan.h"

namespace fanin::cuda::emulation {

struct ConvReport {
  int warps = 0;
  int64_t grid_x = 0;
  int64_t packed_bytes = 0;
};

// Writes run.y. `blocks`: a grid that replaces the plan's; 0 for the plan's. Throws
// std::logic_error as run_gemm does.
ConvReport run_conv(const CondensedView& view, const ConvGeometry& geometry, const ConvInput& input,
                    ValueType activations, int64_t blocks, const RunArguments& run);

}  // namespace fanin::cuda::emulation
