// Convolutions of int8 weights through a kernel of CondensedGemm: the windows of a tile of output
// pixels are copied side by side.
#pragma once

#include "core/cpu_features.h"
#include "kernels/quantized_conv_kernel.h"

namespace fanin {

// With the kernel that the table of int8 layers has for `isa`. Throws std::invalid_argument if
// ConvStrips cannot copy what the window reads.
std::unique_ptr<QuantizedConvKernel> pack_quantized_tiles_conv(const CondensedView& view,
                                                               const ConvGeometry& geometry,
                                                               Isa isa, const Executor& executor);

}  // namespace fanin
