// The machine interface of thread programs on a GPU; emulation/host_context.h is its counterpart on
// the host. Only for the device compiler.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

#include "cuda/types.h"

namespace fanin::cuda {

class DeviceContext {
 public:
  template <typename T>
  class Global {
   public:
    __device__ __forceinline__ Global(const void* data, int64_t)
        : data_(static_cast<const T*>(data)) {}
    // Through the read-only path: nothing writes these arrays while the kernel runs.
    __device__ __forceinline__ T operator[](int64_t at) const {
      T result;
      if constexpr (sizeof(T) % 16 == 0) {
        uint4 words[sizeof(T) / 16];
#pragma unroll
        for (int i = 0; i < static_cast<int>(sizeof(T) / 16); ++i)
          words[i] = __ldg(reinterpret_cast<const uint4*>(data_ + at) + i);
        memcpy(&result, words, sizeof(T));
      } else if constexpr (sizeof(T) == 8) {
        const uint2 words = __ldg(reinterpret_cast<const uint2*>(data_ + at));
        memcpy(&result, &words, sizeof(T));
      } else if constexpr (sizeof(T) == 4) {
        const unsigned word = __ldg(reinterpret_cast<const unsigned*>(data_ + at));
        memcpy(&result, &word, sizeof(T));
      } else {
        static_assert(sizeof(T) == 2, "a size that no load has");
        const unsigned short half = __ldg(reinterpret_cast<const unsigned short*>(data_ + at));
        memcpy(&result, &half, sizeof(T));
      }
      return result;
    }

   private:
    const T* data_;
  };

  template <typename T>
  class Output {
   public:
    __device__ __forceinline__ Output(void* data, int64_t) : data_(static_cast<T*>(data)) {}
    __device__ __forceinline__ void store(int64_t at, T value) const { data_[at] = value; }

   private:
    T* data_;
  };

  template <typename T>
  class Shared {
   public:
    __device__ __forceinline__ Shared(int64_t offset, int64_t) {
      extern __shared__ __align__(16) unsigned char memory[];
      data_ = reinterpret_cast<T*>(memory + offset);
    }
    __device__ __forceinline__ Shared(T* data) : data_(data) {}
    __device__ __forceinline__ T* data() const { return data_; }
    __device__ __forceinline__ T load(int at) const { return data_[at]; }
    __device__ __forceinline__ void store(int at, T value) const { data_[at] = value; }

   private:
    T* data_;
  };

  template <typename T>
  __device__ __forceinline__ Global<T> global(const void* data, int64_t count) const {
    return {data, count};
  }
  template <typename T>
  __device__ __forceinline__ Output<T> output(void* data, int64_t count) const {
    return {data, count};
  }
  template <typename T>
  __device__ __forceinline__ Shared<T> shared(int64_t offset, int64_t count) const {
    return {offset, count};
  }

  __device__ __forceinline__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ __forceinline__ int threads() const { return static_cast<int>(blockDim.x); }
  __device__ __forceinline__ int64_t block_x() const { return blockIdx.x; }
  __device__ __forceinline__ int64_t block_y() const { return blockIdx.y; }
  __device__ __forceinline__ int64_t grid_x() const { return gridDim.x; }
  __device__ __forceinline__ int64_t grid_y() const { return gridDim.y; }

  __device__ __forceinline__ void sync() const { __syncthreads(); }

  // Shared memory of a block of the cluster; this block's if there are no clusters.
  template <typename T>
  __device__ __forceinline__ Shared<T> cluster_shared(int rank, int64_t offset,
                                                      int64_t count) const {
#if __CUDA_ARCH__ >= 900
    return cooperative_groups::this_cluster().map_shared_rank(shared<T>(offset, count).data(),
                                                              static_cast<unsigned>(rank));
#else
    (void)rank;
    return {offset, count};
#endif
  }

  __device__ __forceinline__ void cluster_sync() const {
#if __CUDA_ARCH__ >= 900
    cooperative_groups::this_cluster().sync();
#else
    __syncthreads();
#endif
  }

  // A barrier of the cluster before the end, so that no block's shared memory is released while
  // others read it; orders no accesses.
  __device__ __forceinline__ void cluster_leave() const {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::);
#endif
  }

  // The sum over the warp, the same in every lane; all 32 lanes must call it.
  __device__ __forceinline__ float warp_sum(float value) const {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
  }

  __device__ __forceinline__ float fma(float a, float b, float c) const { return fmaf(a, b, c); }
};

}  // namespace fanin::cuda
