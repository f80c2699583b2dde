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

// What the lanes of a warp do together: device_context.h states who holds what.

// The butterfly of the device's shuffles.
inline void add_lanes(void* const (&lanes)[32]) {
  float values[32];
  for (int lane = 0; lane < 32; ++lane) values[lane] = *static_cast<const float*>(lanes[lane]);
  for (int distance = 16; distance > 0; distance /= 2) {
    float next[32];
    for (int lane = 0; lane < 32; ++lane) next[lane] = values[lane] + values[lane ^ distance];
    std::copy(next, next + 32, values);
  }
  for (int lane = 0; lane < 32; ++lane) *static_cast<float*>(lanes[lane]) = values[lane];
}

template <int kCount>
struct MatrixLane {
  uint16_t row[8];  // that the lane names
  Raw<4 * kCount> result;
};

template <int kCount>
void exchange_matrices(void* const (&lanes)[32]) {
  for (int lane = 0; lane < 32; ++lane)
    for (int matrix = 0; matrix < kCount; ++matrix) {
      const auto& named = *static_cast<const MatrixLane<kCount>*>(lanes[8 * matrix + lane / 4]);
      const int first = 2 * (lane % 4);
      static_cast<MatrixLane<kCount>*>(lanes[lane])->result.words[matrix] =
          named.row[first] | static_cast<uint32_t>(named.row[first + 1]) << 16;
    }
}

struct MmaLane {
  Raw<16> a;
  uint32_t b[2];
  float* sums;
};

// Sums of a step are exact here, and rounded when they are added to the others.
template <typename X>
void multiply_lanes(void* const (&lanes)[32]) {
  double a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& held = *static_cast<const MmaLane*>(lanes[lane]);
    const int g = lane / 4, t = 2 * (lane % 4);
    for (int i = 0; i < 8; ++i)
      a[g + i / 2 % 2 * 8][t + i % 2 + i / 4 * 8] = widen_bits<X>(part_of<2>(held.a, i));
    for (int i = 0; i < 4; ++i)
      b[t + i % 2 + i / 2 * 8][g] = widen_bits<X>(held.b[i / 2] >> (16 * (i % 2)) & 0xffff);
  }
  for (int lane = 0; lane < 32; ++lane) {
    float* sums = static_cast<const MmaLane*>(lanes[lane])->sums;
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = 2 * (lane % 4) + i % 2;
      double sum = sums[i];
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      sums[i] = static_cast<float>(sum);
    }
  }
}

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
    T once(int64_t at) const { return (*this)[at]; }

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
  float fma(float a, float b, float c) const { return std::fma(a, b, c); }

  uint32_t dot4(uint32_t a, uint32_t b, uint32_t sum) const {
    for (int byte = 0; byte < 32; byte += 8) sum += (a >> byte & 0xff) * (b >> byte & 0xff);
    return sum;
  }

  uint32_t opaque(uint32_t value) const { return value; }

  float warp_sum(float value) const {
    block_.warp_collective(add_lanes, &value);
    return value;
  }

  void warp_sync() const {
    block_.warp_collective([](void* const(&)[32]) {}, nullptr);
  }

  template <typename T>
  void copy_async16(const void* data, int64_t count, int64_t at, int there, int to) const {
    if (there < 0 || there > 16 / static_cast<int>(sizeof(T)) || at < 0 || at + there > count)
      throw std::logic_error("a copy of " + std::to_string(there) + " elements from " +
                             std::to_string(at) + " of a global array of " + std::to_string(count));
    const T* from = static_cast<const T*>(data) + at;
    if (reinterpret_cast<uintptr_t>(from) % 16 != 0)
      throw std::logic_error("a copy of 16 bytes is not aligned");
    block_.copy_async(to, 16, from, there * static_cast<int64_t>(sizeof(T)));
  }
  void copy_commit() const { block_.copy_commit(); }
  void copy_wait(int pending) const { block_.copy_wait(std::min(pending, 2)); }

  template <int kCount>
  Raw<4 * kCount> load_matrices(int row) const {
    MatrixLane<kCount> lane;
    if (thread() % 32 < 8 * kCount) std::memcpy(lane.row, block_.read(row, 16), 16);
    block_.warp_collective(exchange_matrices<kCount>, &lane);
    return lane.result;
  }

  template <typename X>
  void mma(const Raw<16>& a, uint32_t low, uint32_t high, float (&sums)[4]) const {
    MmaLane lane{a, {low, high}, sums};
    block_.warp_collective(multiply_lanes<X>, &lane);
  }

 private:
  Cluster& cluster_;
  Block& block_;
  const Place place_;
  std::vector<uint8_t>& writes_;
};

}  // namespace fanin::cuda::emulation
