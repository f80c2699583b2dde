// The machine interface of thread programs on a GPU; emulation/host_context.h is its counterpart on
// the host. Only for the device compiler.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>
#include <type_traits>

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

    // 16 bytes that no other block reads, and which need no place in L1.
    __device__ __forceinline__ T once(int64_t at) const {
      static_assert(sizeof(T) == 16, "one load");
      uint4 words;
      asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                   : "l"(data_ + at));
      T result;
      memcpy(&result, &words, sizeof(T));
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
  __device__ __forceinline__ void warp_sync() const { __syncwarp(); }

  // The same number, of which the compiler no longer knows how it was made.
  __device__ __forceinline__ uint32_t opaque(uint32_t value) const {
    asm volatile("" : "+r"(value));
    return value;
  }

  // The instructions of capability 8.0 and later that follow need all lanes of a warp, except the
  // copies. An older GPU never runs a kernel that has them, see dispatch.h.

  // Begins to copy up to eight elements of 16 bits to a unit of shared memory, with zeros for the
  // others. `data + at` lies at a multiple of 16 bytes.
  template <typename T>
  __device__ __forceinline__ void copy_async16(const void* data, int64_t, int64_t at, int there,
                                               int to) const {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address_of(to)),
                 "l"(static_cast<const T*>(data) + at), "r"(there * static_cast<int>(sizeof(T)))
                 : "memory");
#else
    (void)data, (void)at, (void)there, (void)to;
    __trap();
#endif
  }

  // The same for one element of 4 bytes.
  __device__ __forceinline__ void copy_async4(const void* data, int64_t, int64_t at, bool there,
                                              int to) const {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address_of(to)),
                 "l"(static_cast<const float*>(data) + at), "r"(there ? 4 : 0)
                 : "memory");
#else
    (void)data, (void)at, (void)there, (void)to;
    __trap();
#endif
  }

  // Closes a group of this thread's copies.
  __device__ __forceinline__ void copy_commit() const {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
  }

  // Waits for all groups but the last `pending`, at most 2 (more are waited for).
  __device__ __forceinline__ void copy_wait(int pending) const {
#if __CUDA_ARCH__ >= 800
    if (pending >= 2) {
      asm volatile("cp.async.wait_group 2;" ::: "memory");
    } else if (pending == 1) {
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else {
      asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
#else
    (void)pending;
#endif
  }

  // Loads kCount matrices of 8 x 8 elements of 16 bits. Lane 8 * i + j names the 16 bytes of row j
  // of matrix i; lane l gets elements 2 * (l % 4) and the next of row l / 4 of each.
  template <int kCount>
  __device__ __forceinline__ Raw<4 * kCount> load_matrices(int row) const {
    Raw<4 * kCount> result = {};
#if __CUDA_ARCH__ >= 800
    uint32_t (&words)[kCount] = result.words;
    if constexpr (kCount == 2) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                   : "=r"(words[0]), "=r"(words[1])
                   : "r"(address_of(row))
                   : "memory");
    } else {
      static_assert(kCount == 4, "a count that no instruction has");
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                   : "r"(address_of(row))
                   : "memory");
    }
#else
    (void)row;
    __trap();
#endif
    return result;
  }

  // Loads four matrices like load_matrices, but lane l gets elements l / 4 of rows 2 * (l % 4) and
  // the next of each.
  __device__ __forceinline__ Raw<16> load_transposed(int row) const {
    Raw<16> result = {};
#if __CUDA_ARCH__ >= 800
    uint32_t (&words)[4] = result.words;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address_of(row))
                 : "memory");
#else
    (void)row;
    __trap();
#endif
    return result;
  }

  // sums += a * b on the tensor cores, 16 x 8 from 16 x 16 and 16 x 8. With g = lane / 4 and
  // t = 2 * (lane % 4), a lane has of a, for columns t and t + 1: rows g, g + 8, then both rows for
  // columns 8 further; of b rows t and t + 1, then those 8 further, of column g; of the sums
  // columns t and t + 1 of row g, then of row g + 8. With float32, which must be TF32 numbers, a
  // has 16 x 8: with s = lane % 4, rows g, g + 8 for column s, then for column s + 4; b rows s, s +
  // 4 of column g.
  template <typename X>
  __device__ __forceinline__ void mma(const Raw<16>& a, uint32_t low, uint32_t high,
                                      float (&sums)[4]) const {
#if __CUDA_ARCH__ >= 800
    if constexpr (std::is_same_v<X, Float16>) {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, {%0, %1, %2, %3};"
          : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
          : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "r"(low),
            "r"(high));
    } else if constexpr (std::is_same_v<X, float>) {
      asm volatile(
          "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, {%0, %1, %2, %3};"
          : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
          : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "r"(low),
            "r"(high));
    } else {
      static_assert(std::is_same_v<X, Bfloat16>, "a type of 16 bits");
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, {%0, %1, %2, %3};"
          : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
          : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "r"(low),
            "r"(high));
    }
#else
    (void)a, (void)low, (void)high, (void)sums;
    __trap();
#endif
  }

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
  // others read it. Orders no accesses, but the compiler moves none past it.
  __device__ __forceinline__ void cluster_leave() const {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::
                     : "memory");
#endif
  }

  // The sum over the warp, the same in every lane; all 32 lanes must call it.
  __device__ __forceinline__ float warp_sum(float value) const {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
  }

  // sum + the products of the four bytes of each.
  __device__ __forceinline__ uint32_t dot4(uint32_t a, uint32_t b, uint32_t sum) const {
    return __dp4a(a, b, sum);
  }

  __device__ __forceinline__ float fma(float a, float b, float c) const { return fmaf(a, b, c); }

 private:
  __device__ __forceinline__ unsigned address_of(int offset) const {
    return static_cast<unsigned>(__cvta_generic_to_shared(shared<unsigned char>(offset, 1).data()));
  }
};

}  // namespace fanin::cuda
