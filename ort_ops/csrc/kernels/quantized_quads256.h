// Quads of eight samples in a register, for AVX-VNNI or AVX-512 VNNI. Like panel_core.h, only for
// translation units of an instruction set.
#pragma once

#include <immintrin.h>

namespace fanin {
namespace {

struct Quads256 {
  using Type = __m256i;
  static constexpr int kLanes = 8;
  static constexpr bool kBroadcastsFromMemory = false;
  static Type load(const float* from) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
  }
  static void store(float* to, Type value) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(to), value);
  }
  static Type broadcast(const float* from) {
    return _mm256_castps_si256(_mm256_broadcast_ss(from));
  }
  static Type broadcast4(const float* from) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Type lane(Type four, int i) {
    switch (i) {
      case 0:
        return _mm256_shuffle_epi32(four, 0x00);
      case 1:
        return _mm256_shuffle_epi32(four, 0x55);
      case 2:
        return _mm256_shuffle_epi32(four, 0xaa);
      default:
        return _mm256_shuffle_epi32(four, 0xff);
    }
  }
  // With the intrinsic, GCC 12 keeps copies of the sums and spills them.
  static Type fma(Type weights, Type x, Type sum) {
#if defined(__AVX512VNNI__)
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(weights));
#else
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(x), "x"(weights));
#endif
    return sum;
  }
};

// Next to four vectors of x, which take as many loads.
struct Quads256Loads : Quads256 {
  static constexpr bool kBroadcastsFromMemory = true;
};

}  // namespace
}  // namespace fanin
