// Convolutions of int8 weights one output channel after another, tap by tap, for every geometry.
#pragma once

#include <memory>

#include "kernels/quantized_conv_kernel.h"

namespace fanin {

std::unique_ptr<QuantizedConvKernel> pack_quantized_taps_conv(const CondensedView& view,
                                                              const ConvGeometry& geometry,
                                                              const Executor& executor);

}  // namespace fanin
