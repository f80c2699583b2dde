// Direct convolution, for filters over few channels: a vector holds neighboring pixels of one
// filter. The channels are copied with zeros around them, such that the pixels of a tap lie side by
// side, across rows; a pointwise convolution reads its channels in place.
#pragma once

#include "kernels/conv_kernel.h"
#include "kernels/direct_conv_ops.h"

namespace fanin {

std::unique_ptr<ConvKernel> pack_direct_conv(const CondensedView& view,
                                             const ConvGeometry& geometry,
                                             const DirectConvOps& ops);

}  // namespace fanin
