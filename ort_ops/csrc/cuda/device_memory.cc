#include "cuda/device_memory.h"

#include <iterator>
#include <map>
#include <new>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace fanin::cuda {
namespace {

// std::bad_alloc with a message.
class OutOfDeviceMemory final : public std::bad_alloc {
 public:
  OutOfDeviceMemory(size_t bytes, int device)
      : what_("device " + std::to_string(device) + " has no room for " + std::to_string(bytes) +
              " bytes of a packed layer") {}
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  std::string what_;
};

int64_t attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

class Cache {
 public:
  // device, kernel, hash, in_features, out_features, active, fan_in, value type
  using Key = std::tuple<int, const void*, uint64_t, int64_t, int64_t, int64_t, int64_t, int>;

  std::shared_ptr<SharedLayer> entry(const Key& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<SharedLayer> found = entries_[key].lock();
    if (!found) entries_[key] = found = std::make_shared<SharedLayer>();
    for (auto at = entries_.begin(); at != entries_.end();)
      at = at->second.expired() ? entries_.erase(at) : std::next(at);
    return found;
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::weak_ptr<SharedLayer>> entries_;
};

Cache& cache() {
  static Cache& instance = *new Cache();  // never destroyed, like the CPU's
  return instance;
}

}  // namespace

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clears the error for the next caller
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

CurrentDevice::CurrentDevice(int device) {
  check(cudaGetDevice(&before_), "cudaGetDevice");
  check(cudaSetDevice(device), "cudaSetDevice");
}

CurrentDevice::~CurrentDevice() { cudaSetDevice(before_); }

DeviceLimits limits_of(int device) {
  DeviceLimits limits;
  limits.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device);
  limits.shared_bytes_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  limits.shared_bytes_per_multiprocessor =
      attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
  limits.threads_per_multiprocessor = attribute(cudaDevAttrMaxThreadsPerMultiProcessor, device);
  limits.capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor, device) +
                      attribute(cudaDevAttrComputeCapabilityMinor, device);
  limits.cluster = attribute(cudaDevAttrClusterLaunch, device) ? PanelShape::kMaxCluster : 1;
  return limits;
}

DeviceMemory::DeviceMemory(const Blob& blob, int device)
    : device_(device), size_(blob.bytes.size()) {
  cudaError_t error = cudaMalloc(&data_, size_);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw OutOfDeviceMemory(size_, device);
  }
  check(error, "allocating memory for a packed layer");
  error = cudaMemcpy(data_, blob.bytes.data(), size_, cudaMemcpyHostToDevice);
  // Of pageable memory, the end may still be on its way, for which a session's streams do not wait.
  if (error == cudaSuccess) error = cudaStreamSynchronize(nullptr);
  if (error != cudaSuccess) cudaFree(data_);
  check(error, "copying a packed layer to the device");
}

DeviceMemory::~DeviceMemory() {
  // Errors cannot be reported here; at the end of a process the device may be gone already.
  int before = 0;
  if (cudaGetDevice(&before) != cudaSuccess || cudaSetDevice(device_) != cudaSuccess) return;
  cudaFree(data_);
  cudaSetDevice(before);
}

bool DeviceMemory::holds(const Blob& blob) const {
  if (blob.bytes.size() != size_) return false;
  std::vector<unsigned char> there(size_);
  check(cudaMemcpy(there.data(), data_, size_, cudaMemcpyDeviceToHost),
        "reading a packed layer back");
  return there == blob.bytes;
}

PlacedLayer place(const Blob& blob, const void* kernel, uint64_t hash, const CondensedView& view,
                  int device) {
  std::shared_ptr<SharedLayer> layer =
      cache().entry({device, kernel, hash, view.in_features, view.out_features, view.active,
                     view.fan_in, static_cast<int>(view.value_type)});
  const std::lock_guard<std::mutex> lock(layer->mutex);
  if (layer->memory && layer->memory->holds(blob)) return {layer, true};
  if (!layer->memory) {
    layer->memory = std::make_unique<DeviceMemory>(blob, device);
    return {layer, false};
  }
  // Among layers with colliding hashes, only the first is shared.
  auto own = std::make_shared<SharedLayer>();
  own->memory = std::make_unique<DeviceMemory>(blob, device);
  return {own, false};
}

void launch(const void* kernel, int64_t grid_x, int64_t grid_y, int warps, int64_t shared_bytes,
            int64_t cluster, void* args, void* stream, const char* op) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid_x), static_cast<unsigned>(grid_y));
  config.blockDim = dim3(static_cast<unsigned>(warps) * 32);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = cluster > 1 ? 1 : 0;
  void* arguments[] = {args};
  const cudaError_t error = cudaLaunchKernelExC(&config, kernel, arguments);
  if (error != cudaSuccess) check(error, (std::string("launching a kernel of ") + op).c_str());
}

}  // namespace fanin::cuda
