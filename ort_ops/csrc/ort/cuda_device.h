// What the CUDA op itself asks of the CUDA runtime. Includes no CUDA header, so that a test can put
// host memory in its place.
#pragma once

#include <cstddef>

namespace fanin::ort {

// Makes `device` the calling thread's current one for its own life. Throws Error.
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

// Copies from memory of the device or the host, and waits for it: never in a run. Throws Error.
void copy_to_host(void* to, const void* from, size_t bytes);

}  // namespace fanin::ort
