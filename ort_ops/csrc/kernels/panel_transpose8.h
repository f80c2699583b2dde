// Transposition into and out of a panel in blocks of 8 x 8. Like panel_core.h, only for translation
// units of one instruction set.
#pragma once

#include <immintrin.h>

#include "kernels/panel_ops.h"

namespace fanin {
namespace {

// Rows first, first + 1 ... of an array whose rows lie `stride` bytes apart, anywhere in memory.
// Past the last row it repeats that one: their results are never used, and no block needs a special
// case.
template <int kRows>
struct RowPointers {
  const char* row[kRows];
  RowPointers(const void* from, int64_t stride, int64_t rows) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i)
      row[i] = static_cast<const char*>(from) + (i < rows ? i : rows - 1) * stride;
  }
  __m128 four(int i, int64_t column) const {
    return _mm_loadu_ps(reinterpret_cast<const float*>(row[i] + 4 * column));
  }
};

// Eight floats of eight rows from `column` on, transposed. Each load takes half a row into half a
// register, so that only in-lane shuffles remain.
inline __attribute__((always_inline)) void transpose8(const RowPointers<8>& from, int64_t column,
                                                      __m256 (&to)[8]) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    __m256 row[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      row[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(from.four(i, column + 4 * half)),
                                    from.four(i + 4, column + 4 * half), 1);
    const __m256 low01 = _mm256_unpacklo_ps(row[0], row[1]);
    const __m256 low23 = _mm256_unpacklo_ps(row[2], row[3]);
    const __m256 high01 = _mm256_unpackhi_ps(row[0], row[1]);
    const __m256 high23 = _mm256_unpackhi_ps(row[2], row[3]);
    to[4 * half] = _mm256_shuffle_ps(low01, low23, 0x44);
    to[4 * half + 1] = _mm256_shuffle_ps(low01, low23, 0xee);
    to[4 * half + 2] = _mm256_shuffle_ps(high01, high23, 0x44);
    to[4 * half + 3] = _mm256_shuffle_ps(high01, high23, 0xee);
  }
}

// Columns that are transposed for all samples before the next ones: reads of a sample are
// sequential, and the panel is still in L1 when its next samples are written.
constexpr int64_t kFillColumns = 128;

// A column of a panel, [1 + columns][width], takes the samples from number s on.
struct PutFloats {
  float* segment;
  int width;

  float* at(int64_t column, int s) const { return segment + (1 + column) * width + s; }
  void operator()(int64_t column, int s, __m256 samples) const {
    _mm256_store_ps(at(column, s), samples);
  }
};

// Calls put(column, s, samples) for the columns [first, last) of up to 8 samples; the last one may
// be incomplete: `bytes` are those of the samples.
template <typename Put>
void fill_tail8(const RowPointers<8>& rows, int64_t first, int64_t last, int64_t bytes, int s,
                const Put& put) {
  char tail[8][32] = {};
  const int64_t left = bytes - 4 * first;
  for (int i = 0; i < 8; ++i)
    __builtin_memcpy(tail[i], rows.row[i] + 4 * first, static_cast<size_t>(left < 32 ? left : 32));
  __m256 column[8];
  transpose8(RowPointers<8>(tail, 32, 8), 0, column);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
    if (i < last - first) put(first + i, s, column[i]);
}

// Transposes `bytes` of each sample, 32 bits to a column.
template <typename Put>
void fill8(const void* x, int64_t stride, int samples, int64_t bytes, int width, const Put& put) {
  const int64_t whole = bytes / 4, columns = (bytes + 3) / 4;
  for (int64_t first = 0; first < columns; first += kFillColumns) {
    const int64_t last = whole - first < kFillColumns ? whole : first + kFillColumns;
    for (int s = 0; s < width; s += 8) {
      const int sample = s < samples ? s : samples - 1;
      const RowPointers<8> rows(static_cast<const char*>(x) + sample * stride, stride,
                                samples - sample);
      if (last - first < 8) {
        if (last > first) fill_tail8(rows, first, last, bytes, s, put);
      } else {
        for (int64_t c = first; c < last; c += 8) {
          if (c > last - 8) c = last - 8;  // once more, rather than less than a block
          __m256 column[8];
          transpose8(rows, c, column);
#pragma GCC unroll 8
          for (int i = 0; i < 8; ++i) put(c + i, s, column[i]);
        }
      }
      if (last == whole && whole < columns) fill_tail8(rows, whole, columns, bytes, s, put);
    }
  }
}

// The column of zeros that a segment begins with.
inline void fill_zeros8(float* segment, int width) {
  for (int s = 0; s < width; s += 8) _mm256_store_ps(segment + s, _mm256_setzero_ps());
}

inline void fill(const float* x, int64_t in_features, int samples, int64_t columns, int width,
                 float* segment) {
  fill_zeros8(segment, width);
  fill8(x, 4 * in_features, samples, 4 * columns, width, PutFloats{segment, width});
}

// Up to 8 samples times up to 8 rows of sums. The second operand is what max and min return for
// NaN, so NaN stays NaN.
inline __attribute__((always_inline)) void drain_block(const float* sums, int64_t rows, int width,
                                                       int samples, const PanelOutput& output,
                                                       float* y, const float* residual) {
  const __m256 low = _mm256_set1_ps(output.clip_min), high = _mm256_set1_ps(output.clip_max);
  if (rows >= 8) {
    __m256 sample[8];
    transpose8(RowPointers<8>(sums, int64_t{4} * width, 8), 0, sample);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      if (i == samples) break;
      __m256 value = sample[i];
      if (residual)
        value = _mm256_add_ps(value, _mm256_loadu_ps(residual + i * output.out_features));
      _mm256_storeu_ps(y + i * output.out_features, _mm256_min_ps(high, _mm256_max_ps(low, value)));
    }
    return;
  }
  for (int i = 0; i < 8 && i < samples; ++i)
    for (int64_t r = 0; r < rows; ++r) {
      __m128 value = _mm_load_ss(sums + r * width + i);
      if (residual) value = _mm_add_ss(value, _mm_load_ss(residual + i * output.out_features + r));
      value =
          _mm_min_ss(_mm256_castps256_ps128(high), _mm_max_ss(_mm256_castps256_ps128(low), value));
      _mm_store_ss(y + i * output.out_features + r, value);
    }
}

// One sample after another, so that writes are sequential: with 3072 outputs, all samples share one
// set of L1, and a half-written line would have to be fetched again.
inline void drain(const float* sums, int64_t rows, int width, int samples,
                  const PanelOutput& output) {
  for (int s = 0; s < samples; s += 8)
    for (int64_t r = 0; r < rows; r += 8) {
      const int64_t at = s * output.out_features + r;
      drain_block(sums + r * width + s, rows - r, width, samples - s, output, output.y + at,
                  output.residual ? output.residual + at : nullptr);
    }
}

}  // namespace
}  // namespace fanin
