// A convolution in two layouts, since the size of an image is known at a run only.
#pragma once

#include "kernels/conv_kernel.h"

namespace fanin {

// Runs images of kLargePixels and more by `large`, others by `small`; both hold the same layer.
std::unique_ptr<ConvKernel> conv_by_size(std::unique_ptr<ConvKernel> small,
                                         std::unique_ptr<ConvKernel> large);

// From here on channels come from L3, one after another faster than several at a time (Cascade
// Lake): depthwise 3 x 3 over 72 x 56 x 56 in 278 us by planes and 464 by lanes of 16 channels, 5 x
// 5 over 120 x 28 x 28 in 187 and 142; 1 x 1 with a fan-in of 1 from 16 to 64 x 112 x 112 in 540 us
// in place and 1150 by panels, with 6 from 64 to 24 x 56 x 56 in 69 and 96, with 4 from 40 to 120 x
// 28 x 28 in 57 and 51.
constexpr int64_t kLargePixels = 2048;

}  // namespace fanin
