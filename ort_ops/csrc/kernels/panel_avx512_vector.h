// Sixteen samples in a register. Like panel_core.h, only for translation units of an instruction
// set.
#pragma once

#include <immintrin.h>

namespace fanin {
namespace {

struct Avx512 {
  using Type = __m512;
  static constexpr int kLanes = 16;
  static constexpr bool kBroadcastsFromMemory = false;
  static Type load(const float* from) { return _mm512_load_ps(from); }
  static void store(float* to, Type value) { _mm512_store_ps(to, value); }
  static Type broadcast(const float* from) { return _mm512_set1_ps(*from); }
  static Type broadcast4(const float* from) { return _mm512_broadcast_f32x4(_mm_loadu_ps(from)); }
  static Type lane(Type four, int i) {
    switch (i) {
      case 0:
        return _mm512_permute_ps(four, 0x00);
      case 1:
        return _mm512_permute_ps(four, 0x55);
      case 2:
        return _mm512_permute_ps(four, 0xaa);
      default:
        return _mm512_permute_ps(four, 0xff);
    }
  }
  static Type fma(Type a, Type b, Type c) { return _mm512_fmadd_ps(a, b, c); }

  using Mask = __mmask16;
  static Mask first(int count) {
    return static_cast<Mask>(count >= kLanes ? 0xffff : count <= 0 ? 0 : (1 << count) - 1);
  }
  static Type load_some(const float* from, Mask mask) { return _mm512_maskz_loadu_ps(mask, from); }
  static void store_some(float* to, Type value, Mask mask) {
    _mm512_mask_storeu_ps(to, mask, value);
  }
  // Adds integers to those of int32 at `to`, or replaces them.
  static void add_integers(float* to, Type value, bool replaces) {
    __m512i whole = _mm512_cvtps_epi32(value);
    if (!replaces) whole = _mm512_add_epi32(whole, _mm512_load_si512(to));
    _mm512_store_si512(to, whole);
  }
  static Type load_any(const float* from) { return _mm512_loadu_ps(from); }
  static Type add(Type a, Type b) { return _mm512_add_ps(a, b); }
  static Type mul(Type a, Type b) { return _mm512_mul_ps(a, b); }
  // The second operand is what max and min return for NaN, so NaN stays NaN.
  static Type clip(Type value, Type low, Type high) {
    return _mm512_min_ps(high, _mm512_max_ps(low, value));
  }
};

// For CPUs on which a load costs less than a permute, see broadcasts_from_memory().
struct Avx512Loads : Avx512 {
  static constexpr bool kBroadcastsFromMemory = true;
};

}  // namespace
}  // namespace fanin
