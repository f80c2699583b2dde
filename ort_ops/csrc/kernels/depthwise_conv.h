// Depthwise convolutions without pruned positions: a vector holds one pixel of several channels, as
// in the blocked layouts of dense libraries.
#pragma once

#include "kernels/conv_kernel.h"
#include "kernels/depthwise_conv_ops.h"

namespace fanin {

// Whether pack_depthwise_conv supports the layer: a group has one channel and one filter, and every
// filter has a weight at each tap (a missing one would still be multiplied with pixels).
bool is_whole_depthwise(const CondensedView& view, const ConvGeometry& geometry);

// Throws std::invalid_argument for a layer that does not fit.
std::unique_ptr<ConvKernel> pack_depthwise_conv(const CondensedView& view,
                                                const ConvGeometry& geometry,
                                                const DepthwiseConvOps& ops);

}  // namespace fanin
