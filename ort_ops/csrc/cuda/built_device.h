// A device as kernels see it that were built for this library.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/plan.h"

namespace fanin::cuda {

// What a device offers to kernels that were built for a capability, see DeviceLimits: code for an
// older one that the driver has translated lacks the newer instructions and, before 9.0, those of
// clusters, without which a block would read its own shared memory instead of another's.
inline DeviceLimits limits_for_build(DeviceLimits device, int64_t capability) {
  device.capability = std::min(device.capability, capability);
  if (device.capability < 90) device.cluster = 1;
  return device;
}

// What the device offers to the kernels of this library.
DeviceLimits built_limits(int device);

// Allows a kernel as much shared memory as the device has; called before any run.
void allow_shared_memory(const void* kernel, const DeviceLimits& limits);

}  // namespace fanin::cuda
