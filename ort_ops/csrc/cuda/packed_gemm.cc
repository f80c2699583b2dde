#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "core/packed_cache.h"
#include "cuda/dispatch.h"
#include "cuda/gemm.h"
#include "cuda/kernels.h"
#include "cuda/layout.h"
#include "cuda/pack.h"
#include "cuda/plan.h"

namespace fanin::cuda {
namespace {

// std::bad_alloc with a sentence.
class OutOfDeviceMemory final : public std::bad_alloc {
 public:
  OutOfDeviceMemory(size_t bytes, int device)
      : what_("device " + std::to_string(device) + " has no room for " + std::to_string(bytes) +
              " bytes of a packed layer") {}
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  std::string what_;
};

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // or the next caller would find it
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

// Makes a device current, and the one before it again at the end.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    check(cudaSetDevice(device), "cudaSetDevice");
  }
  ~CurrentDevice() { cudaSetDevice(before_); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
};

int64_t attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

DeviceLimits limits_of(int device) {
  DeviceLimits limits;
  limits.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device);
  limits.shared_bytes_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  limits.shared_bytes_per_multiprocessor =
      attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
  limits.threads_per_multiprocessor = attribute(cudaDevAttrMaxThreadsPerMultiProcessor, device);
  limits.cluster = attribute(cudaDevAttrClusterLaunch, device) ? PanelShape::kMaxCluster : 1;
  return limits;
}

class DeviceMemory {
 public:
  DeviceMemory(const Blob& blob, int device) : device_(device), size_(blob.bytes.size()) {
    if (cudaMalloc(&data_, size_) != cudaSuccess) {
      cudaGetLastError();
      throw OutOfDeviceMemory(size_, device);
    }
    const cudaError_t error = cudaMemcpy(data_, blob.bytes.data(), size_, cudaMemcpyHostToDevice);
    if (error != cudaSuccess) cudaFree(data_);
    check(error, "copying a packed layer to the device");
  }
  ~DeviceMemory() {
    // Errors have nobody to go to; at the end of a process the device may be gone already.
    int before = 0;
    if (cudaGetDevice(&before) != cudaSuccess || cudaSetDevice(device_) != cudaSuccess) return;
    cudaFree(data_);
    cudaSetDevice(before);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  const void* data() const { return data_; }
  size_t size() const { return size_; }

  bool holds(const Blob& blob) const {
    if (blob.bytes.size() != size_) return false;
    std::vector<unsigned char> there(size_);
    check(cudaMemcpy(there.data(), data_, size_, cudaMemcpyDeviceToHost),
          "reading a packed layer back");
    return there == blob.bytes;
  }

 private:
  const int device_;
  const size_t size_;
  void* data_ = nullptr;
};

// A layer on a device, or on its way there. Lives as long as somebody packs or holds it.
struct Entry {
  std::mutex mutex;  // whoever packs, or compares, has it
  std::unique_ptr<const DeviceMemory> memory;
};

class Cache {
 public:
  // device, row, hash, in_features, out_features, active, fan_in, value type
  using Key = std::tuple<int, const KernelRow*, uint64_t, int64_t, int64_t, int64_t, int64_t, int>;

  std::shared_ptr<Entry> entry(const Key& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<Entry> found = entries_[key].lock();
    if (!found) entries_[key] = found = std::make_shared<Entry>();
    for (auto at = entries_.begin(); at != entries_.end();)
      at = at->second.expired() ? entries_.erase(at) : std::next(at);
    return found;
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::weak_ptr<Entry>> entries_;
};

Cache& cache() {
  static Cache& instance = *new Cache();  // never destroyed, like the CPU's
  return instance;
}

// Lets a kernel have as much shared memory as the device gives; done before any run.
void allow_shared_memory(const void* kernel, const DeviceLimits& limits) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(limits.shared_bytes_per_block)),
        "cudaFuncSetAttribute");
}

// `cluster`: blocks beside each other in x that read each other's shared memory; 1 for none.
void launch(const void* kernel, int64_t grid_x, int64_t grid_y, int warps, int64_t shared_bytes,
            int64_t cluster, void* args, void* stream) {
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
  check(cudaLaunchKernelExC(&config, kernel, arguments), "launching a CondensedGemm kernel");
}

const void* stream_kernel(ValueType activations, const StreamKey& key) {
  switch (activations) {
    case ValueType::kFloat16:
      return stream_kernel_f16(key);
    case ValueType::kBfloat16:
      return stream_kernel_bf16(key);
    default:
      return stream_kernel_f32(key);
  }
}

// One layout of the layer and how it is launched.
class Packed {
 public:
  Packed(const KernelRow& row, BatchRange batches, const CondensedView& view, uint64_t hash,
         int device, const DeviceLimits& limits)
      : row_(row), batches_(batches), limits_(limits) {
    const auto start = std::chrono::steady_clock::now();
    Blob blob;
    if (row.layout == Layout::kStream) {
      stream_ = pack_stream(view, blob);
      for (int samples : {1, 2, 4, 8})
        for (bool staged : {false, true})
          if (!staged || stream_.index_bytes == 2)
            allow_shared_memory(stream_kernel(row.activations, stream_key(samples, staged)),
                                limits);
    } else {
      panel_ = pack_panel(view, panel_cut(view.in_features, limits), blob);
      for (bool vector_x : {false, true})
        allow_shared_memory(panel_kernel(row.activations, vector_x), limits);
    }
    entry_ = cache().entry({device, &row, hash, view.in_features, view.out_features, view.active,
                            view.fan_in, static_cast<int>(view.value_type)});
    {
      const std::lock_guard<std::mutex> lock(entry_->mutex);
      shared_ = entry_->memory && entry_->memory->holds(blob);
      // Of layers whose hashes collide, the first is the one that is shared.
      if (entry_->memory && !shared_) entry_ = std::make_shared<Entry>();
      if (!entry_->memory) entry_->memory = std::make_unique<DeviceMemory>(blob, device);
    }
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  void run(const RunArguments& run, void* stream) const {
    const void* base = entry_->memory->data();
    if (row_.layout == Layout::kStream) {
      const StreamPlan plan = plan_stream(stream_, run.batch, row_.activations, limits_);
      StreamArgs args = complete(stream_.arguments(base), run, plan, row_.activations);
      launch(stream_kernel(row_.activations, stream_key(plan.samples, plan.staged)), plan.grid_x,
             plan.grid_y, plan.warps, plan.shared_bytes, 1, &args, stream);
    } else {
      const PanelPlan plan = plan_panel(panel_, run, row_.activations, limits_);
      PanelArgs args = complete(panel_.arguments(base), run, plan);
      launch(panel_kernel(row_.activations, plan.vector_x), plan.grid_x, plan.grid_y, plan.warps,
             plan.shared_bytes, panel_.cut.cluster, &args, stream);
    }
  }

  PackedInfo info() const {
    PackedInfo info;
    info.kernel = row_.name;
    info.batches = batches_;
    info.bytes = static_cast<int64_t>(entry_->memory->size());
    info.padding = row_.layout == Layout::kStream ? stream_.padding : panel_.padding;
    info.shared = shared_;
    info.seconds = seconds_;
    return info;
  }

  const BatchRange& batches() const { return batches_; }

 private:
  StreamKey stream_key(int samples, bool staged) const {
    return {stream_.value_type, stream_.index_bytes, samples, staged};
  }

  const KernelRow& row_;
  const BatchRange batches_;
  const DeviceLimits limits_;
  StreamLayout stream_;  // that of the row's layout is filled in
  PanelLayout panel_;
  std::shared_ptr<Entry> entry_;
  bool shared_ = false;
  double seconds_ = 0;
};

class DispatchedGemm final : public PackedGemm {
 public:
  explicit DispatchedGemm(std::vector<Packed> kernels) : kernels_(std::move(kernels)) {}

  void run(const void* x, int64_t batch, void* y, const Epilogue& epilogue,
           void* stream) const override {
    if (batch < 1) return;
    // A batch outside the promised range is still computed, by the nearest kernel.
    const auto chosen =
        std::find_if(kernels_.begin(), kernels_.end() - 1,
                     [batch](const Packed& packed) { return batch <= packed.batches().max; });
    RunArguments run;
    run.x = x;
    run.residual = epilogue.residual;
    run.y = y;
    run.batch = batch;
    run.clip_min = epilogue.clip_min;
    run.clip_max = epilogue.clip_max;
    chosen->run(run, stream);
  }

  std::vector<PackedInfo> info() const override {
    std::vector<PackedInfo> infos;
    for (const Packed& packed : kernels_) infos.push_back(packed.info());
    return infos;
  }

 private:
  std::vector<Packed> kernels_;  // by rising batch
};

}  // namespace

std::unique_ptr<PackedGemm> PackedGemm::pack(const CondensedView& view, BatchRange batches,
                                             ValueType activations, int device) {
  const CurrentDevice current(device);
  const DeviceLimits limits = limits_of(device);
  const uint64_t hash = content_hash(view);
  std::vector<Packed> kernels;
  const int64_t last = std::max<int64_t>(1, batches.max);
  for (int64_t first = std::clamp<int64_t>(batches.min, 1, last);;) {
    const KernelRow& row = select_kernel(activations, first, view.in_features, limits);
    const BatchRange served{first, std::min(last, last_batch(row, view.in_features, limits))};
    kernels.emplace_back(row, served, view, hash, device, limits);
    if (served.max == last) break;
    first = served.max + 1;
  }
  return std::make_unique<DispatchedGemm>(std::move(kernels));
}

std::unique_ptr<PackedGemm> pack_kernel(const CondensedView& view, BatchRange batches,
                                        ValueType activations, int device,
                                        const std::string& kernel) {
  const CurrentDevice current(device);
  std::vector<Packed> kernels;
  kernels.emplace_back(find_kernel(kernel, activations), batches, view, content_hash(view), device,
                       limits_of(device));
  return std::make_unique<DispatchedGemm>(std::move(kernels));
}

}  // namespace fanin::cuda
