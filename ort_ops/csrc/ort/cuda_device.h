// The CUDA op's own calls of the CUDA runtime. Includes no CUDA header, so that a test can replace
// device memory by host memory.
#pragma once

#include <cstddef>

namespace fanin::ort {

// Makes `device` the calling thread's current one during its lifetime. Throws Error.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

// Copies from device or host memory and waits for the copy, so never used in a run. Throws Error.
void copy_to_host(void* to, const void* from, size_t bytes);

}  // namespace fanin::ort
