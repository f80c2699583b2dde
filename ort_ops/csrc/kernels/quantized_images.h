// Where the numbers of images and of a convolution's outputs lie, in both orders of the axes.
#pragma once

#include <cstdint>

#include "core/quantized_conv.h"

namespace fanin {

struct ImageStrides {
  int64_t image;
  int64_t channel;
  int64_t row;
  int64_t column;

  int64_t at(int64_t n, int64_t c, int64_t i, int64_t j) const {
    return n * image + c * channel + i * row + j * column;
  }
};

inline ImageStrides image_strides(int64_t channels, int64_t height, int64_t width,
                                  bool channels_last) {
  const int64_t image = channels * height * width;
  if (channels_last) return {image, 1, width * channels, channels};
  return {image, height * width, width, 1};
}

}  // namespace fanin
