// Packed layers in a device's memory, one copy for each content; and calls of the CUDA runtime that
// turn errors into exceptions. Only for files that are compiled with the toolkit.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <mutex>

#include "core/condensed.h"
#include "cuda/layout.h"
#include "cuda/plan.h"

namespace fanin::cuda {

// Throws std::runtime_error that states what failed and why.
void check(cudaError_t error, const char* what);

// Makes a device current, and restores the previous one at the end of the scope.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
};

DeviceLimits limits_of(int device);

// A copy of a blob on a device.
class DeviceMemory {
 public:
  // Throws std::bad_alloc, with device and bytes in its message, if memory is insufficient.
  DeviceMemory(const Blob& blob, int device);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  const void* data() const { return data_; }
  size_t size() const { return size_; }
  bool holds(const Blob& blob) const;

 private:
  const int device_;
  const size_t size_;
  void* data_ = nullptr;
};

// A layer on a device, or being copied there. Lives as long as it is being packed or has an owner.
struct SharedLayer {
  std::mutex mutex;  // whoever packs, or compares, has it
  std::unique_ptr<const DeviceMemory> memory;
};

struct PlacedLayer {
  std::shared_ptr<const SharedLayer> layer;
  bool shared;  // it was there already

  const DeviceMemory& memory() const { return *layer->memory; }
};

// Copies a packed layer to a device, or shares an existing copy of the same content there. The
// address of `kernel` identifies the layout, `hash` the content.
PlacedLayer place(const Blob& blob, const void* kernel, uint64_t hash, const CondensedView& view,
                  int device);

// `cluster`: neighboring blocks (along x) that read each other's shared memory; 1 for none. The
// error message names `op`.
void launch(const void* kernel, int64_t grid_x, int64_t grid_y, int warps, int64_t shared_bytes,
            int64_t cluster, void* args, void* stream, const char* op);

}  // namespace fanin::cuda
