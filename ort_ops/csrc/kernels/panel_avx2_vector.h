// Eight samples in a register. Like panel_core.h, only for translation units of an instruction set.
#pragma once

#include <immintrin.h>

namespace fanin {
namespace {

struct Avx2 {
  using Type = __m256;
  static constexpr int kLanes = 8;
  static constexpr bool kBroadcastsFromMemory = false;
  static Type load(const float* from) { return _mm256_load_ps(from); }
  static void store(float* to, Type value) { _mm256_store_ps(to, value); }
  static Type broadcast(const float* from) { return _mm256_broadcast_ss(from); }
  static Type broadcast4(const float* from) {
    const __m128 four = _mm_loadu_ps(from);
    return _mm256_insertf128_ps(_mm256_castps128_ps256(four), four, 1);
  }
  static Type lane(Type four, int i) {
    switch (i) {
      case 0:
        return _mm256_permute_ps(four, 0x00);
      case 1:
        return _mm256_permute_ps(four, 0x55);
      case 2:
        return _mm256_permute_ps(four, 0xaa);
      default:
        return _mm256_permute_ps(four, 0xff);
    }
  }
  static Type fma(Type a, Type b, Type c) { return _mm256_fmadd_ps(a, b, c); }

  using Mask = __m256i;
  static Mask first(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Type load_some(const float* from, Mask mask) { return _mm256_maskload_ps(from, mask); }
  static void store_some(float* to, Type value, Mask mask) { _mm256_maskstore_ps(to, mask, value); }
  // Adds integers to those of int32 at `to`, or replaces them.
  static void add_integers(float* to, Type value, bool replaces) {
    __m256i whole = _mm256_cvtps_epi32(value);
    if (!replaces)
      whole = _mm256_add_epi32(whole, _mm256_load_si256(reinterpret_cast<const __m256i*>(to)));
    _mm256_store_si256(reinterpret_cast<__m256i*>(to), whole);
  }
  static Type load_any(const float* from) { return _mm256_loadu_ps(from); }
  static Type add(Type a, Type b) { return _mm256_add_ps(a, b); }
  static Type mul(Type a, Type b) { return _mm256_mul_ps(a, b); }
  // The second operand is what max and min return for NaN, so NaN stays NaN.
  static Type clip(Type value, Type low, Type high) {
    return _mm256_min_ps(high, _mm256_max_ps(low, value));
  }
};

}  // namespace
}  // namespace fanin
