// Convolutions of int8 weights in the window layout: the samples of a window are output pixels.
#pragma once

#include "kernels/quantized_conv_kernel.h"
#include "kernels/quantized_window_ops.h"

namespace fanin {

// Throws std::invalid_argument if ConvStrips cannot copy what the window reads.
std::unique_ptr<QuantizedConvKernel> pack_quantized_window_conv(const CondensedView& view,
                                                                const ConvGeometry& geometry,
                                                                const QuantizedWindowOps& ops,
                                                                const Executor& executor);

}  // namespace fanin
