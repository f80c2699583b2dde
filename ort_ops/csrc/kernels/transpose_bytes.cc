#include "kernels/transpose_bytes.h"

#include <algorithm>
#include <cstring>

namespace fanin {
namespace {

constexpr int kSide = 16;

// A vector of every CPU.
typedef uint8_t Bytes __attribute__((vector_size(kSide)));

inline Bytes interleave_low(Bytes a, Bytes b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}

inline Bytes interleave_high(Bytes a, Bytes b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                 31);
}

// Four times, the first half of the rows is interleaved with the second one: each time, one bit of
// the number of a row becomes one of the place in it.
inline void transpose_block(Bytes (&block)[kSide]) {
#pragma GCC unroll 4
  for (int round = 0; round < 4; ++round) {
    Bytes next[kSide];
#pragma GCC unroll 8
    for (int i = 0; i < kSide / 2; ++i) {
      next[2 * i] = interleave_low(block[i], block[i + kSide / 2]);
      next[2 * i + 1] = interleave_high(block[i], block[i + kSide / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i) block[i] = next[i];
  }
}

void transpose_whole(const uint8_t* from, int64_t from_stride, uint8_t* to, int64_t to_stride) {
  Bytes block[kSide];
#pragma GCC unroll 16
  for (int i = 0; i < kSide; ++i) std::memcpy(&block[i], from + i * from_stride, kSide);
  transpose_block(block);
#pragma GCC unroll 16
  for (int i = 0; i < kSide; ++i) std::memcpy(to + i * to_stride, &block[i], kSide);
}

void transpose_part(const uint8_t* from, int64_t from_stride, int64_t rows, int64_t columns,
                    uint8_t* to, int64_t to_stride) {
  Bytes block[kSide] = {};
  for (int64_t i = 0; i < rows; ++i)
    std::memcpy(&block[i], from + i * from_stride, static_cast<size_t>(columns));
  transpose_block(block);
  for (int64_t i = 0; i < columns; ++i)
    std::memcpy(to + i * to_stride, &block[i], static_cast<size_t>(rows));
}

// Calls block(row, column, rows, columns) for squares that cover the matrix. The last ones overlap
// those before them, so that only a matrix narrower than a square has narrower parts. Where they
// are bytes, the squares of a cache line follow one another on both sides: lines that are a power
// of two apart soon leave L1.
template <typename Block>
void for_blocks(int64_t rows, int64_t columns, const Block& block) {
  constexpr int64_t kLine = 64;
  const int64_t high = std::min<int64_t>(kSide, rows), wide = std::min<int64_t>(kSide, columns);
  for (int64_t left = 0; left < columns; left += kLine)
    for (int64_t top = 0; top < rows; top += kLine)
      for (int64_t column = left; column < std::min(columns, left + kLine); column += kSide)
        for (int64_t row = top; row < std::min(rows, top + kLine); row += kSide)
          block(std::min(row, rows - high), std::min(column, columns - wide), high, wide);
}

}  // namespace

void transpose_bytes(const uint8_t* from, int64_t from_stride, int64_t rows, int64_t columns,
                     uint8_t* to, int64_t to_stride) {
  for_blocks(rows, columns, [&](int64_t row, int64_t column, int64_t high, int64_t wide) {
    const uint8_t* source = from + row * from_stride + column;
    uint8_t* target = to + column * to_stride + row;
    if (high == kSide && wide == kSide)
      transpose_whole(source, from_stride, target, to_stride);
    else
      transpose_part(source, from_stride, high, wide, target, to_stride);
  });
}

void transpose_floats(const float* from, int64_t from_stride, int64_t rows, int64_t columns,
                      float* to, int64_t to_stride) {
  for_blocks(rows, columns, [&](int64_t row, int64_t column, int64_t high, int64_t wide) {
    for (int64_t c = column; c < column + wide; ++c)
      for (int64_t r = row; r < row + high; ++r) to[c * to_stride + r] = from[r * from_stride + c];
  });
}

}  // namespace fanin
