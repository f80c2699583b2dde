// A window of 126 columns in byte planes, as a template over the permute of bytes. Only for
// translation units of one instruction set: everything has internal linkage, since each compiles it
// for its own.
//
// x is split into four planes of bytes, so that one permute looks up 64 values out of a window of
// 128 slots; unpacking the planes gives exact float32. A block is 63 columns and a zero slot, so
// that padding reads zero instead of x. The window is twice that of the word planes, which saves
// padding but takes 16 instead of 8 shuffles per step.
#pragma once

#include <immintrin.h>

#include "kernels/window_ops.h"
#include "kernels/window_weights_avx512.h"

namespace fanin {
namespace {

constexpr int kRows = 64;
constexpr int kColumns = 63;
constexpr int kBlockBytes = 256;  // four planes of 64 bytes

// Unpacking takes bytes 4v..4v+3 of all 128-bit lanes to vector v.
constexpr WindowGeometry geometry() {
  WindowGeometry geometry{kRows, kColumns, 64, 64, 2, kBlockBytes, 0, {}, {}, {}, {}};
  for (int r = 0; r < kRows; ++r)
    geometry.lane_byte[r] = static_cast<uint8_t>(r % 16 / 4 * 16 + r / 16 * 4 + r % 4);
  return geometry;
}

void split(const float* x, int64_t in_features, int64_t blocks, uint8_t* planes) {
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t left = in_features - b * kColumns;
    const int64_t columns = left < kColumns ? left : kColumns;
    const float* from = left > 0 ? x + b * kColumns : x;
    for (int quarter = 0; quarter < 4; ++quarter) {
      __m512i values = _mm512_castps_si512(
          _mm512_maskz_loadu_ps(first_lanes(columns - 16 * quarter), from + 16 * quarter));
      uint8_t* to = planes + b * kBlockBytes + 16 * quarter;
      for (int plane = 0; plane < 4; ++plane) {
        _mm_store_si128(reinterpret_cast<__m128i*>(to + 64 * plane), _mm512_cvtepi32_epi8(values));
        values = _mm512_srli_epi32(values, 8);
      }
    }
  }
}

// Permute::bytes(a, index, b): byte index[i] of the 128 bytes a, b; index has 7 bits.
template <typename Weights, typename Permute, int kSamples>
void sum_samples(const WindowSteps& steps, const uint8_t* planes, size_t stride, float* sums) {
  __m512 sum[kSamples][4];
  for (int s = 0; s < kSamples; ++s)
    for (int v = 0; v < 4; ++v) sum[s][v] = _mm512_setzero_ps();
  const uint8_t* step = steps.data;
  const uint8_t* window = planes;
  for (size_t i = 0; i < steps.count; ++i, step += kRows * (1 + Weights::kBytes)) {
    window += static_cast<size_t>(steps.advances[i]) * kBlockBytes;
    __m512i index = _mm512_load_si512(step);
    asm("" : "+v"(index));  // else GCC loads the line four times
    const uint8_t* weights = step + kRows;
#pragma GCC unroll 4
    for (int s = 0; s < kSamples; ++s) {
      __m512i byte[4];
#pragma GCC unroll 4
      for (int plane = 0; plane < 4; ++plane) {
        const uint8_t* table = window + s * stride + 64 * plane;
        byte[plane] =
            Permute::bytes(_mm512_load_si512(table), index, _mm512_load_si512(table + kBlockBytes));
      }
      const __m512i low01 = _mm512_unpacklo_epi8(byte[0], byte[1]);
      const __m512i low23 = _mm512_unpacklo_epi8(byte[2], byte[3]);
      const __m512i high01 = _mm512_unpackhi_epi8(byte[0], byte[1]);
      const __m512i high23 = _mm512_unpackhi_epi8(byte[2], byte[3]);
      const __m512i x[4] = {
          _mm512_unpacklo_epi16(low01, low23), _mm512_unpackhi_epi16(low01, low23),
          _mm512_unpacklo_epi16(high01, high23), _mm512_unpackhi_epi16(high01, high23)};
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v)
        sum[s][v] =
            _mm512_fmadd_ps(_mm512_castsi512_ps(x[v]), Weights::load(weights, v), sum[s][v]);
    }
  }
  for (int s = 0; s < kSamples; ++s)
    for (int v = 0; v < 4; ++v) _mm512_store_ps(sums + s * kRows + 16 * v, sum[s][v]);
}

template <typename Weights, typename Permute>
void sum(const WindowSteps& steps, const uint8_t* planes, size_t stride, int samples, float* sums) {
  switch (samples) {
    case 1:
      return sum_samples<Weights, Permute, 1>(steps, planes, stride, sums);
    case 2:
      return sum_samples<Weights, Permute, 2>(steps, planes, stride, sums);
    case 3:
      return sum_samples<Weights, Permute, 3>(steps, planes, stride, sums);
    default:
      return sum_samples<Weights, Permute, 4>(steps, planes, stride, sums);
  }
}

template <typename Weights, typename Permute>
constexpr WindowOps ops() {
  return {with_weights<Weights>(geometry()), split, sum<Weights, Permute>, 4};
}

}  // namespace
}  // namespace fanin
