// The device layout of a condensed convolution, and the launch of a run.
#pragma once

#include <cstdint>

#include "core/condensed.h"
#include "core/conv_geometry.h"
#include "cuda/conv_kernel.h"
#include "cuda/layout.h"
#include "cuda/plan.h"

namespace fanin::cuda {

// The true weights filter by filter, each with the position that it reads. See conv_kernel.h.
struct ConvLayout {
  ConvGeometry geometry;
  int64_t stored = 0;                       // weights
  int64_t weights = 0, ends = 0, bias = 0;  // offsets in the blob

  // `base` is the address of the blob; the run's batch is that of the input.
  ConvArgs arguments(const void* base, const RunArguments& run, const ConvInput& input) const;
};

// Throws std::bad_alloc, std::length_error for a layer that 32-bit counters do not address.
ConvLayout pack_conv(const CondensedView& view, const ConvGeometry& geometry, Blob& blob);

struct ConvPlan {
  int warps = 4;
  int64_t grid_x = 1;
};

ConvPlan plan_conv(const ConvArgs& args);

}  // namespace fanin::cuda
