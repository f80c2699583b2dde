// Packed layers in a device's memory, one copy for each content; and calls of the CUDA runtime
// whose errors are exceptions. Only for files that are built with the toolkit.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <mutex>

#include "core/condensed.h"
#include "cuda/layout.h"
#include "cuda/plan.h"

namespace fanin::cuda {

// Throws std::runtime_error that says what failed and why.
void check(cudaError_t error, const char* what);

// Makes a device current, and the one before it again at the end.
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
  // Throws std::bad_alloc, whose message names device and bytes, when there is no room.
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

// A layer on a device, or on its way there. Lives as long as somebody packs or holds it.
struct SharedLayer {
  std::mutex mutex;  // whoever packs, or compares, has it
  std::unique_ptr<const DeviceMemory> memory;
};

struct PlacedLayer {
  std::shared_ptr<const SharedLayer> layer;
  bool shared;  // it was there already

  const DeviceMemory& memory() const { return *layer->memory; }
};

// Copies a packed layer to a device, or shares what is there of the same content already. `kernel`
// tells layouts apart by its address, `hash` is that of the content.
PlacedLayer place(const Blob& blob, const void* kernel, uint64_t hash, const CondensedView& view,
                  int device);

// `cluster`: blocks beside each other in x that read each other's shared memory; 1 for none. `op`
// is named in the error.
void launch(const void* kernel, int64_t grid_x, int64_t grid_y, int warps, int64_t shared_bytes,
            int64_t cluster, void* args, void* stream, const char* op);

}  // namespace fanin::cuda
