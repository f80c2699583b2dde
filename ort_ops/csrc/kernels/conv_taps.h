// Tap by tap over rows of pixels: for any CPU, any density and few filters a group.
#pragma once

#include "kernels/conv_kernel.h"

namespace fanin {

std::unique_ptr<ConvKernel> pack_conv_taps(const CondensedView& view, const ConvGeometry& geometry,
                                           const Executor& executor);

}  // namespace fanin
