// Transposition into and out of a panel in blocks of 4 x 4. Like panel_neon_core.h, only for
// translation units of NEON.
#pragma once

#include <arm_neon.h>

#include "kernels/panel_ops.h"

namespace fanin {
namespace {

// Rows first, first + 1 ... of an array whose rows lie `stride` bytes apart, anywhere in memory.
// Past the last row it repeats that one: their results are never used.
struct RowPointers {
  const uint8_t* row[4];
  RowPointers(const void* from, int64_t stride, int64_t rows) {
    for (int i = 0; i < 4; ++i)
      row[i] = static_cast<const uint8_t*>(from) + (i < rows ? i : rows - 1) * stride;
  }
  float32x4_t four(int i, int64_t column) const {
    return vreinterpretq_f32_u8(vld1q_u8(row[i] + 4 * column));
  }
};

// Four elements of 32 bits of four rows from `column` on, transposed.
inline void transpose4(const RowPointers& from, int64_t column, float32x4_t (&to)[4]) {
  const float32x4x2_t even = vtrnq_f32(from.four(0, column), from.four(1, column));
  const float32x4x2_t odd = vtrnq_f32(from.four(2, column), from.four(3, column));
  for (int i = 0; i < 2; ++i) {
    const float64x2_t top = vreinterpretq_f64_f32(even.val[i]);
    const float64x2_t bottom = vreinterpretq_f64_f32(odd.val[i]);
    to[i] = vreinterpretq_f32_f64(vzip1q_f64(top, bottom));
    to[i + 2] = vreinterpretq_f32_f64(vzip2q_f64(top, bottom));
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
  void operator()(int64_t column, int s, float32x4_t samples) const {
    vst1q_f32(at(column, s), samples);
  }
};

// Calls put(column, s, samples) for up to 4 columns of up to 4 samples, from the next `bytes` of
// each; the last column may be incomplete.
template <typename Put>
void fill_block(const RowPointers& rows, int64_t first, int64_t bytes, int s, const Put& put) {
  float32x4_t column[4];
  if (bytes >= 16) {
    transpose4(rows, first, column);
    for (int i = 0; i < 4; ++i) put(first + i, s, column[i]);
    return;
  }
  uint8_t corner[4][16] = {};
  for (int i = 0; i < 4; ++i)
    __builtin_memcpy(corner[i], rows.row[i] + 4 * first, static_cast<size_t>(bytes));
  transpose4(RowPointers(corner, 16, 4), 0, column);
  for (int i = 0; 4 * i < bytes; ++i) put(first + i, s, column[i]);
}

// Transposes `bytes` of each sample, 32 bits to a column.
template <typename Put>
void fill4(const void* x, int64_t stride, int samples, int64_t bytes, int width, const Put& put) {
  const int64_t columns = (bytes + 3) / 4;
  for (int64_t first = 0; first < columns; first += kFillColumns) {
    const int64_t last = columns - first < kFillColumns ? columns : first + kFillColumns;
    for (int s = 0; s < width; s += 4) {
      const int sample = s < samples ? s : samples - 1;
      const RowPointers rows(static_cast<const uint8_t*>(x) + sample * stride, stride,
                             samples - sample);
      for (int64_t c = first; c < last; c += 4) fill_block(rows, c, bytes - 4 * c, s, put);
    }
  }
}

// The column of zeros that a segment begins with.
inline void fill_zeros4(float* segment, int width) {
  for (int s = 0; s < width; s += 4) vst1q_f32(segment + s, vdupq_n_f32(0.0f));
}

}  // namespace
}  // namespace fanin
