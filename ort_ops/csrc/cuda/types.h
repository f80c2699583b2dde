// Storage types and vectors of the thread programs, for the device and the host compiler.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/value_type.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define FANIN_INLINE __device__ __forceinline__
#else
#define FANIN_INLINE inline
#endif
#if defined(__CUDA_ARCH__)
#define FANIN_UNROLL _Pragma("unroll")
#define FANIN_UNROLL4 _Pragma("unroll 4")
#define FANIN_ROLLED _Pragma("unroll 1")
#define FANIN_PRAGMA(text) _Pragma(#text)
#define FANIN_UNROLL_BY(times) FANIN_PRAGMA(unroll(times))
#else
#define FANIN_UNROLL
#define FANIN_UNROLL4
#define FANIN_ROLLED
#define FANIN_UNROLL_BY(times)
#endif

namespace fanin::cuda {

// The bits of a 16-bit float.
struct Float16 {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};

// Memory that is copied by one instruction (beyond 16 bytes, by several of 16).
template <int kBytes>
struct alignas(kBytes < 16 ? kBytes : 16) Raw {
  static_assert(kBytes >= 4 && kBytes % 4 == 0, "whole words");
  static constexpr int kWords = kBytes / 4;
  uint32_t words[kWords];
};
template <>
struct Raw<2> {
  uint16_t half;
};

// Part number `at` of `Bytes` bytes; `at` must be known to the compiler.
template <int kPart, int kBytes>
FANIN_INLINE uint32_t part_of(const Raw<kBytes>& raw, int at) {
  static_assert(kPart == 2 || kPart == 4, "16 or 32 bits");
  if constexpr (kBytes == 2) {
    return raw.half;
  } else if constexpr (kPart == 4) {
    return raw.words[at];
  } else {
    return raw.words[at / 2] >> (16 * (at % 2)) & 0xffff;
  }
}

FANIN_INLINE float float_of(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
#endif
}

FANIN_INLINE uint32_t bits_of(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
#endif
}

// The value of the low bits of `bits` as a T.
template <typename T>
FANIN_INLINE float widen_bits(uint32_t bits);
template <>
FANIN_INLINE float widen_bits<float>(uint32_t bits) {
  return float_of(bits);
}
template <>
FANIN_INLINE float widen_bits<Bfloat16>(uint32_t bits) {
  return float_of(bits << 16);
}
template <>
FANIN_INLINE float widen_bits<Float16>(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
#else
  return widen_float16(static_cast<uint16_t>(bits));
#endif
}

// Rounds the bits of a float32 to TF32, of 10 bits of mantissa: to nearest, ties away from zero.
// The device leaves the bits of a NaN, of which tensor cores ignore the last 13: without others it
// is an infinity to them.
FANIN_INLINE uint32_t tf32_bits(uint32_t bits) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(float_of(bits)));
  return rounded;
#else
  if ((bits & 0x7f800000) == 0x7f800000) return bits & ~0x1fffu;
  return (bits + 0x1000) & ~0x1fffu;
#endif
}

FANIN_INLINE uint32_t stored_bits(float value) { return bits_of(value); }
FANIN_INLINE uint32_t stored_bits(Float16 value) { return value.bits; }
FANIN_INLINE uint32_t stored_bits(Bfloat16 value) { return value.bits; }

template <typename T>
FANIN_INLINE float widen(T value) {
  return widen_bits<T>(stored_bits(value));
}

// Rounds to nearest even, and beyond the largest number to infinity.
template <typename T>
FANIN_INLINE T narrow(float value);
template <>
FANIN_INLINE float narrow<float>(float value) {
  return value;
}
template <>
FANIN_INLINE Float16 narrow<Float16>(float value) {
#if defined(__CUDA_ARCH__)
  return {__half_as_ushort(__float2half_rn(value))};
#else
  Float16 result;
  narrow_float16(&value, 1, &result.bits);
  return result;
#endif
}
template <>
FANIN_INLINE Bfloat16 narrow<Bfloat16>(float value) {
#if defined(__CUDA_ARCH__)
  return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
#else
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
#endif
}

// An output from sum, bias and residual. The comparisons let NaN pass.
FANIN_INLINE float clipped(float value, float low, float high) {
  value = value < low ? low : value;
  return value > high ? high : value;
}

// Calls visit(T{}) with the storage type.
template <typename Visit>
auto visit_type(ValueType type, const Visit& visit) {
  switch (type) {
    case ValueType::kFloat16:
      return visit(Float16{});
    case ValueType::kBfloat16:
      return visit(Bfloat16{});
    default:
      return visit(float{});
  }
}

}  // namespace fanin::cuda
