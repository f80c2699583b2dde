// Filling and draining panels of int8 layers with AVX-512BW, as quantized_panel_core.h.
#pragma once

#include "kernels/panel_transpose16.h"
#include "kernels/quantized_panel_core.h"

namespace fanin {
namespace {

struct PutQuads16 : PutQuads {
  using PutQuads::PutQuads;
  using PutQuads::operator();

  void operator()(int64_t column, int s, __m512 samples) const {
    const __m512i wide = _mm512_broadcast_i64x4(flip);
    _mm512_store_si512(at(column, s), _mm512_xor_si512(_mm512_castps_si512(samples), wide));
  }
};

struct PutWidened16 : PutWidened {
  using PutWidened::PutWidened;
  using PutWidened::operator();

  void operator()(int64_t column, int s, __m512 samples) const {
    const __m512i wide = _mm512_broadcast_i64x4(flip), low = _mm512_set1_epi32(0xff);
    const __m512i quad = _mm512_xor_si512(_mm512_castps_si512(samples), wide);
    const __m512i bytes[4] = {
        _mm512_and_si512(quad, low), _mm512_and_si512(_mm512_srli_epi32(quad, 8), low),
        _mm512_and_si512(_mm512_srli_epi32(quad, 16), low), _mm512_srli_epi32(quad, 24)};
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      _mm512_store_ps(at(4 * column + i, s), _mm512_cvtepi32_ps(bytes[i]));
  }
};

template <typename Put>
void fill_bytes16(const uint8_t* x, int64_t stride, int samples, int64_t columns, int width,
                  uint8_t flip, float* segment) {
  fill_zeros8(segment, width);
  fill16(x, stride, samples, columns, width, Put(segment, width, flip));
}

// As drain8.
void drain16(const float* sums, int width, const QuantizedFinish& all) {
  if (width < 16) return drain8(sums, width, all);
  alignas(64) float block[16 * kFinishedRows];
  for (int lane = 0; lane < all.lanes; lane += kFinishedRows)
    for (int s = 0; s < all.samples; s += 16) {
      const QuantizedFinish part = part_of(all, lane, s, 16);
      for (int r = 0; r < part.lanes; r += 16) {
        const float* from = sums + (lane + r) * width + s;
        __m512 sample[16];
        transpose16(RowPointers<16>(from, int64_t{4} * width, part.lanes - r), 0, sample);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) _mm512_store_ps(block + i * kFinishedRows + r, sample[i]);
      }
      finish<kFinishedRows>(part, reinterpret_cast<const int32_t*>(block));
    }
}

}  // namespace
}  // namespace fanin
