// How the delta kernel cuts rows and launches, see plan.h.
#pragma once

#include <cstdint>

#include "cuda/delta_layout.h"
#include "cuda/plan.h"

namespace fanin::cuda {

struct DeltaPlan {
  int samples = 1;  // in shared memory at a time
  int warps = 1;
  bool vector_x = false;
  int64_t grid_x = 1;
  int64_t grid_y = 1;
  int64_t shared_bytes = 0;
};

// Samples of x that fit into the kernel's shared memory at a time, a power of two up to 4; 0 if not
// even one fits, or if there are more columns than 16 bits count.
int64_t delta_samples(int64_t in_features, ValueType activations, const DeviceLimits& limits);

// The cut with the shortest estimated time of the busiest multiprocessor. Depends on the layer and
// the device, not on the batch, and so does the order of sums.
DeltaCut delta_cut(const CondensedView& view, const DeviceLimits& limits);

DeltaPlan plan_delta(const DeltaLayout& layout, const RunArguments& run, ValueType activations,
                     const DeviceLimits& limits);

DeltaArgs complete(DeltaArgs args, const RunArguments& run, const DeltaPlan& plan);

}  // namespace fanin::cuda
