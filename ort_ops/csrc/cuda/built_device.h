// A device as kernels see it that were built for this library.
#pragma once

#include "cuda/plan.h"

namespace fanin::cuda {

// What the device offers to kernels as they were built: code for an older one that the driver has
// translated lacks the newer instructions.
DeviceLimits built_limits(int device);

// Allows a kernel as much shared memory as the device has; called before any run.
void allow_shared_memory(const void* kernel, const DeviceLimits& limits);

}  // namespace fanin::cuda
