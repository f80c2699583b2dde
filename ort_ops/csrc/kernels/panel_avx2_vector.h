// Eight samples in a register. Like panel_core.h, only for translation units of an instruction set.
#pragma once

#include <immintrin.h>

namespace fanin {
namespace {

struct Avx2 {
  using Type = __m256;
  static constexpr int kLanes = 8;
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
};

}  // namespace
}  // namespace fanin
