// Transposing matrices of 8-bit numbers, for images in another order of the axes.
#pragma once

#include <cstdint>

namespace fanin {

// to[column * to_stride + row] = from[row * from_stride + column]; strides in bytes.
void transpose_bytes(const uint8_t* from, int64_t from_stride, int64_t rows, int64_t columns,
                     uint8_t* to, int64_t to_stride);

// The same for float32, with strides in elements.
void transpose_floats(const float* from, int64_t from_stride, int64_t rows, int64_t columns,
                      float* to, int64_t to_stride);

}  // namespace fanin
