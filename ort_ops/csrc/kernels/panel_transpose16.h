// Transposition into and out of a panel in blocks of 16 x 16, which are whole cache lines. Like
// panel_core.h, only for translation units of one instruction set.
#pragma once

#include <immintrin.h>

#include "kernels/panel_transpose8.h"

namespace fanin {
namespace {

// Sixteen floats of sixteen rows from `column` on, transposed. Each load puts four floats of a row
// into a quarter of a register, so that only in-lane shuffles remain: 80 instructions for the two
// ports that shuffle or blend, where whole rows would take 64 for the one that shuffles.
inline __attribute__((always_inline)) void transpose16(const RowPointers<16>& from, int64_t column,
                                                       __m512 (&to)[16]) {
  __m512 rows[4][4];
  // All quarters of a row's cache line are read together: rows often lie multiples of 4096 bytes
  // apart, and L1 can hold only eight of their lines.
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 4
    for (int quarter = 0; quarter < 4; ++quarter)
      rows[quarter][i] = _mm512_castps128_ps512(from.four(i, column + 4 * quarter));
#pragma GCC unroll 4
    for (int quarter = 0; quarter < 4; ++quarter)
      rows[quarter][i] = _mm512_mask_broadcast_f32x4(rows[quarter][i], 0x00f0,
                                                     from.four(i + 4, column + 4 * quarter));
#pragma GCC unroll 4
    for (int quarter = 0; quarter < 4; ++quarter)
      rows[quarter][i] = _mm512_mask_broadcast_f32x4(rows[quarter][i], 0x0f00,
                                                     from.four(i + 8, column + 4 * quarter));
#pragma GCC unroll 4
    for (int quarter = 0; quarter < 4; ++quarter)
      rows[quarter][i] = _mm512_mask_broadcast_f32x4(rows[quarter][i], 0xf000,
                                                     from.four(i + 12, column + 4 * quarter));
  }
#pragma GCC unroll 4
  for (int quarter = 0; quarter < 4; ++quarter) {
    const __m512(&row)[4] = rows[quarter];
    const __m512 low01 = _mm512_unpacklo_ps(row[0], row[1]);
    const __m512 low23 = _mm512_unpacklo_ps(row[2], row[3]);
    const __m512 high01 = _mm512_unpackhi_ps(row[0], row[1]);
    const __m512 high23 = _mm512_unpackhi_ps(row[2], row[3]);
    to[4 * quarter] = _mm512_shuffle_ps(low01, low23, 0x44);
    to[4 * quarter + 1] = _mm512_shuffle_ps(low01, low23, 0xee);
    to[4 * quarter + 2] = _mm512_shuffle_ps(high01, high23, 0x44);
    to[4 * quarter + 3] = _mm512_shuffle_ps(high01, high23, 0xee);
  }
}

struct PutFloats16 : PutFloats {
  using PutFloats::operator();
  void operator()(int64_t column, int s, __m512 samples) const {
    _mm512_store_ps(at(column, s), samples);
  }
};

// As fill8.
template <typename Put>
void fill16(const void* x, int64_t stride, int samples, int64_t bytes, int width, const Put& put) {
  const int64_t whole = bytes / 4;
  if (width < 16 || whole < 16) return fill8(x, stride, samples, bytes, width, put);
  for (int s = 0; s < width; s += 16) {
    const int sample = s < samples ? s : samples - 1;
    const char* from = static_cast<const char*>(x) + sample * stride;
    const RowPointers<16> rows(from, stride, samples - sample);
    for (int64_t c = 0; c < whole; c += 16) {
      if (c > whole - 16) c = whole - 16;  // once more, rather than less than a block
      __m512 column[16];
      transpose16(rows, c, column);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) put(c + i, s, column[i]);
    }
    if (4 * whole == bytes) continue;
#pragma GCC unroll 2
    for (int half = 0; half < 16; half += 8) {
      const int first = half < samples - sample ? half : samples - sample - 1;
      fill_tail8(RowPointers<8>(from + first * stride, stride, samples - sample - first), whole,
                 whole + 1, bytes, s + half, put);
    }
  }
}

inline void fill16(const float* x, int64_t in_features, int samples, int64_t columns, int width,
                   float* segment) {
  fill_zeros8(segment, width);
  fill16(x, 4 * in_features, samples, 4 * columns, width, PutFloats16{{segment, width}});
}

// Up to 16 samples times up to 16 rows of sums.
inline __attribute__((always_inline)) void drain_block16(const float* sums, int64_t rows, int width,
                                                         int samples, const PanelOutput& output,
                                                         float* y, const float* residual) {
  const __m512 low = _mm512_set1_ps(output.clip_min), high = _mm512_set1_ps(output.clip_max);
  const __mmask16 mask = static_cast<__mmask16>(rows >= 16 ? 0xffff : (1 << rows) - 1);
  __m512 sample[16];
  transpose16(RowPointers<16>(sums, int64_t{4} * width, rows), 0, sample);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    if (i == samples) break;
    __m512 value = sample[i];
    if (residual)
      value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, residual + i * output.out_features));
    // The second operand is what max and min return for NaN, so NaN stays NaN.
    value = _mm512_min_ps(high, _mm512_max_ps(low, value));
    _mm512_mask_storeu_ps(y + i * output.out_features, mask, value);
  }
}

inline void drain16(const float* sums, int64_t rows, int width, int samples,
                    const PanelOutput& output) {
  if (width < 16) return drain(sums, rows, width, samples, output);
  for (int s = 0; s < samples; s += 16)
    for (int64_t r = 0; r < rows; r += 16) {
      const int64_t at = s * output.out_features + r;
      drain_block16(sums + r * width + s, rows - r, width, samples - s, output, output.y + at,
                    output.residual ? output.residual + at : nullptr);
    }
}

}  // namespace
}  // namespace fanin
