// Shared by the window kernels of AVX-512: how a step stores its weights, 16 of which are widened
// to a register of float32. Only for translation units of one instruction set: everything has
// internal linkage.
#pragma once

#include <immintrin.h>

#include "kernels/window_ops.h"

namespace fanin {
namespace {

// A mask of the first `count` lanes.
inline __mmask16 first_lanes(int64_t count) {
  return count >= 16 ? 0xffff : count <= 0 ? 0 : static_cast<__mmask16>((1u << count) - 1);
}

struct Float32Weights {
  static constexpr ValueType kType = ValueType::kFloat32;
  static constexpr int kBytes = 4;
  static constexpr int lane(int row) { return row; }
  static __m512 load(const uint8_t* weights, int v) { return _mm512_load_ps(weights + 64 * v); }
};

struct Float16Weights {
  static constexpr ValueType kType = ValueType::kFloat16;
  static constexpr int kBytes = 2;
  static constexpr int lane(int row) { return row; }
  static __m512 load(const uint8_t* weights, int v) {
    return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(weights + 32 * v)));
  }
};

// Rows 32 h + i and 32 h + 16 + i are the halves of dword i of a line: a shift and a mask widen
// them, on ports that the permutes leave free; vpmovzxwd would use the permutes' port.
struct Bfloat16Weights {
  static constexpr ValueType kType = ValueType::kBfloat16;
  static constexpr int kBytes = 2;
  static constexpr int lane(int row) { return row / 32 * 32 + row % 16 * 2 + row % 32 / 16; }
  static __m512 load(const uint8_t* weights, int v) {
    const __m512i line = _mm512_load_si512(weights + 64 * (v / 2));
    return _mm512_castsi512_ps(v % 2 == 0 ? _mm512_slli_epi32(line, 16)
                                          : _mm512_and_si512(line, _mm512_set1_epi32(-65536)));
  }
};

}  // namespace
}  // namespace fanin
