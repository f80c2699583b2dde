// The machine interface of thread programs in the emulation: device_context.h with checks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/emulation/block.h"
#include "cuda/types.h"

namespace fanin::cuda::emulation {

// Position of a block in its grid.
struct Place {
  int64_t block_x = 0;
  int64_t block_y = 0;
  int64_t grid_x = 1;
  int64_t grid_y = 1;
};

class HostContext {
 public:
  // `writes` counts the stores to each element of y.
  HostContext(Cluster& cluster, int rank, const Place& place, std::vector<uint8_t>& writes)
      : cluster_(cluster), block_(cluster.block(rank)), place_(place), writes_(writes) {}

  template <typename T>
  class Global {
   public:
    Global(const void* data, int64_t count)
        : data_(static_cast<const unsigned char*>(data)), count_(count) {}
    T operator[](int64_t at) const {
      if (at < 0 || at >= count_)
        throw std::logic_error("element " + std::to_string(at) + " of a global array of " +
                               std::to_string(count_));
      const unsigned char* from = data_ + at * static_cast<int64_t>(sizeof(T));
      if (reinterpret_cast<uintptr_t>(from) % std::min<size_t>(sizeof(T), 16) != 0)
        throw std::logic_error("a load of " + std::to_string(sizeof(T)) + " bytes is not aligned");
      T result;
      std::memcpy(&result, from, sizeof(T));
      return result;
    }

   private:
    const unsigned char* data_;
    int64_t count_;
  };

  template <typename T>
  class Output {
   public:
    Output(void* data, int64_t count, std::vector<uint8_t>& writes)
        : data_(static_cast<T*>(data)), count_(count), writes_(writes) {}
    void store(int64_t at, T value) const {
      if (at < 0 || at >= count_ || count_ != static_cast<int64_t>(writes_.size()))
        throw std::logic_error("output " + std::to_string(at) + " of " + std::to_string(count_));
      if (writes_[static_cast<size_t>(at)]++)
        throw std::logic_error("output " + std::to_string(at) + " is written twice");
      data_[at] = value;
    }

   private:
    T* data_;
    int64_t count_;
    std::vector<uint8_t>& writes_;
  };

  template <typename T>
  class Shared {
   public:
    // `remote`: accessed by another block of the cluster, which may only read it.
    Shared(Block& block, int64_t offset, int64_t count, bool remote = false)
        : block_(block), offset_(offset), count_(count), remote_(remote) {}
    T load(int at) const {
      const unsigned char* from = remote_ ? block_.read_from_outside(place(at), sizeof(T))
                                          : block_.read(place(at), sizeof(T));
      T result;
      std::memcpy(&result, from, sizeof(T));
      return result;
    }
    void store(int at, T value) const {
      if (remote_) throw std::logic_error("a store to another block's shared memory");
      std::memcpy(block_.write(place(at), sizeof(T)), &value, sizeof(T));
    }

   private:
    int64_t place(int at) const {
      if (at < 0 || at >= count_)
        throw std::logic_error("element " + std::to_string(at) + " of a shared array of " +
                               std::to_string(count_));
      return offset_ + at * static_cast<int64_t>(sizeof(T));
    }
    Block& block_;
    int64_t offset_;
    int64_t count_;
    bool remote_;
  };

  template <typename T>
  Global<T> global(const void* data, int64_t count) const {
    return {data, count};
  }
  template <typename T>
  Output<T> output(void* data, int64_t count) const {
    return {data, count, writes_};
  }
  template <typename T>
  Shared<T> shared(int64_t offset, int64_t count) const {
    return {block_, offset, count};
  }

  template <typename T>
  Shared<T> cluster_shared(int rank, int64_t offset, int64_t count) const {
    return {cluster_.block(rank), offset, count, &cluster_.block(rank) != &block_};
  }

  int thread() const { return block_.thread(); }
  int threads() const { return block_.threads(); }
  int64_t block_x() const { return place_.block_x; }
  int64_t block_y() const { return place_.block_y; }
  int64_t grid_x() const { return place_.grid_x; }
  int64_t grid_y() const { return place_.grid_y; }
  void sync() const { block_.sync(); }
  void cluster_sync() const { block_.cluster_sync(); }
  void cluster_leave() const { block_.cluster_sync(); }
  float warp_sum(float value) const { return block_.warp_sum(value); }
  float fma(float a, float b, float c) const { return std::fma(a, b, c); }

 private:
  Cluster& cluster_;
  Block& block_;
  const Place place_;
  std::vector<uint8_t>& writes_;
};

}  // namespace fanin::cuda::emulation
