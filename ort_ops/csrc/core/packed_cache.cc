#include "core/packed_cache.h"

#include <chrono>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

namespace fanin {
namespace {

// Odd, with about as many ones as zeros.
constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15;

uint64_t mix(uint64_t state, uint64_t word) {
  const uint64_t product = (state ^ word) * kMultiplier;
  return product ^ (product >> 32);
}

// Four independent chains of multiplications, to hide their latency: about 10 bytes per ns.
uint64_t hash_bytes(uint64_t state, const void* data, size_t bytes) {
  const unsigned char* at = static_cast<const unsigned char*>(data);
  uint64_t chains[4] = {state, state + 1, state + 2, state + 3};
  size_t left = bytes;
  for (; left >= sizeof(chains); left -= sizeof(chains), at += sizeof(chains)) {
    uint64_t words[4];
    std::memcpy(words, at, sizeof(words));
    for (int chain = 0; chain < 4; ++chain) chains[chain] = mix(chains[chain], words[chain]);
  }
  uint64_t tail[4] = {};
  if (left > 0) std::memcpy(tail, at, left);
  state = bytes;
  for (int chain = 0; chain < 4; ++chain) state = mix(state, mix(chains[chain], tail[chain]));
  return state;
}

// A layer that is packed or being packed. Lives as long as it is being packed or has an owner.
struct Entry {
  std::mutex mutex;                    // held while packing or comparing
  std::shared_ptr<const void> kernel;  // of the row's kernel type
};

class Cache {
 public:
  // row of a kernel table, hash, threads that it is packed for, in_features, out_features, active,
  // fan_in
  using Key = std::tuple<const void*, uint64_t, size_t, int64_t, int64_t, int64_t, int64_t>;

  std::shared_ptr<Entry> entry(const Key& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<Entry> found = entries_[key].lock();
    if (!found) entries_[key] = found = std::make_shared<Entry>();
    // Keys of freed layers are erased, so that the map does not grow.
    for (auto at = entries_.begin(); at != entries_.end();)
      at = at->second.expired() ? entries_.erase(at) : std::next(at);
    return found;
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::weak_ptr<Entry>> entries_;
};

Cache& cache() {
  // Never destroyed, since sessions may be created and freed while the process exits.
  static Cache& instance = *new Cache();
  return instance;
}

// The result of pack() for the view, or a live copy of it; `holds` says whether a kernel is one.
template <typename Kernel, typename Pack, typename Holds>
Cached<Kernel> find_or_pack(const void* row, uint64_t hash, const CondensedView& view,
                            size_t threads, const Pack& pack, const Holds& holds) {
  const auto start = std::chrono::steady_clock::now();
  const auto spent = [start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const std::shared_ptr<Entry> entry = cache().entry(
      {row, hash, threads, view.in_features, view.out_features, view.active, view.fan_in});
  const std::lock_guard<std::mutex> lock(entry->mutex);
  const bool shared = entry->kernel != nullptr;
  // Among layers with colliding hashes, only the first is shared.
  if (shared && !holds(*static_cast<const Kernel*>(entry->kernel.get()))) {
    std::shared_ptr<const Kernel> own = pack();
    return {std::move(own), false, spent()};
  }
  if (!shared) entry->kernel = std::shared_ptr<const Kernel>(pack());
  return {{entry, static_cast<const Kernel*>(entry->kernel.get())}, shared, spent()};
}

}  // namespace

uint64_t content_hash(const CondensedView& view) {
  const size_t entries = static_cast<size_t>(view.active * view.fan_in);
  const size_t index_bytes =
      view.index_type == IndexType::kUint16 ? sizeof(uint16_t) : sizeof(int32_t);
  uint64_t state = hash_bytes(0, view.values, entries * value_bytes(view.value_type));
  state = hash_bytes(state, view.indices, entries * index_bytes);
  state = hash_bytes(state, view.rows, static_cast<size_t>(view.active) * sizeof(int32_t));
  const size_t biases = view.bias ? static_cast<size_t>(view.out_features) : 0;
  return hash_bytes(state, view.bias, biases * sizeof(float));
}

uint64_t content_hash(const CondensedView& view, const ConvGeometry& geometry) {
  return hash_bytes(content_hash(view), &geometry, sizeof(geometry));
}

CachedKernel packed_kernel(const KernelRow& row, const CondensedView& view, uint64_t hash,
                           const Executor& executor) {
  return find_or_pack<GemmKernel>(
      &row, hash, view, executor.concurrency(), [&] { return row.pack(view, executor); },
      [&](const GemmKernel& kernel) { return kernel.holds(view); });
}

Cached<QuantizedKernel> packed_quantized_kernel(const QuantizedKernelRow& row,
                                                const CondensedView& view, uint64_t hash,
                                                const Executor& executor) {
  return find_or_pack<QuantizedKernel>(
      &row, hash, view, executor.concurrency(), [&] { return row.pack(view, executor); },
      [&](const QuantizedKernel& kernel) { return kernel.holds(view); });
}

Cached<QuantizedConvKernel> packed_quantized_conv_kernel(const QuantizedConvKernelRow& row,
                                                         const CondensedView& view,
                                                         const ConvGeometry& geometry,
                                                         uint64_t hash, const Executor& executor) {
  return find_or_pack<QuantizedConvKernel>(
      &row, hash, view, executor.concurrency(), [&] { return row.pack(view, geometry, executor); },
      [&](const QuantizedConvKernel& kernel) { return kernel.holds(view, geometry); });
}

Cached<ConvKernel> packed_conv_kernel(const ConvKernelRow& row, const CondensedView& view,
                                      const ConvGeometry& geometry, uint64_t hash,
                                      const Executor& executor) {
  return find_or_pack<ConvKernel>(
      &row, hash, view, executor.concurrency(), [&] { return row.pack(view, geometry, executor); },
      [&](const ConvKernel& kernel) { return kernel.holds(view, geometry); });
}

}  // namespace fanin
