// Filling and draining panels of int8 layers on x86. Like panel_core.h, only for translation units
// of one instruction set, which include its finish() first.
#pragma once

#include <immintrin.h>

#include "kernels/panel_core.h"
#include "kernels/panel_transpose8.h"
#include "kernels/quantized_panel_lanes.h"

namespace fanin {
namespace {

// Four columns of x in a column of the panel.
struct PutQuads : PutFloats {
  __m256i flip;

  PutQuads(float* to, int samples, uint8_t bits)
      : PutFloats{to, samples}, flip(_mm256_set1_epi8(static_cast<char>(bits))) {}

  void operator()(int64_t column, int s, __m256 samples) const {
    _mm256_store_si256(reinterpret_cast<__m256i*>(at(column, s)),
                       _mm256_xor_si256(_mm256_castps_si256(samples), flip));
  }
};

// Four columns of x in four columns of the panel, as floats.
struct PutWidened : PutQuads {
  using PutQuads::PutQuads;

  void operator()(int64_t column, int s, __m256 samples) const {
    const __m256i quad = _mm256_xor_si256(_mm256_castps_si256(samples), flip);
    const __m256i low = _mm256_set1_epi32(0xff);
    const __m256i bytes[4] = {
        _mm256_and_si256(quad, low), _mm256_and_si256(_mm256_srli_epi32(quad, 8), low),
        _mm256_and_si256(_mm256_srli_epi32(quad, 16), low), _mm256_srli_epi32(quad, 24)};
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      _mm256_store_ps(at(4 * column + i, s), _mm256_cvtepi32_ps(bytes[i]));
  }
};

template <typename Put>
void fill_bytes8(const uint8_t* x, int64_t stride, int samples, int64_t columns, int width,
                 uint8_t flip, float* segment) {
  fill_zeros8(segment, width);
  fill8(x, stride, samples, columns, width, Put(segment, width, flip));
}

// Transposes the sums of some rows to [samples][kFinishedRows] and finishes them.
inline void drain8(const float* sums, int width, const QuantizedFinish& all) {
  alignas(64) float block[8 * kFinishedRows];
  for (int lane = 0; lane < all.lanes; lane += kFinishedRows)
    for (int s = 0; s < all.samples; s += 8) {
      const QuantizedFinish part = part_of(all, lane, s, 8);
      for (int r = 0; r < part.lanes; r += 8) {
        const float* from = sums + (lane + r) * width + s;
        __m256 sample[8];
        transpose8(RowPointers<8>(from, int64_t{4} * width, part.lanes - r), 0, sample);
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) _mm256_store_ps(block + i * kFinishedRows + r, sample[i]);
      }
      finish<kFinishedRows>(part, reinterpret_cast<const int32_t*>(block));
    }
}

}  // namespace
}  // namespace fanin
