// Filters over few channels, a depthwise convolution's single one in particular: the channels are
// padded to planes, in which the pixels that a tap needs stand side by side, across rows. Of
// kernels of 1 x 1 without strides and pads, the channels themselves are such planes.
#pragma once

#include "kernels/conv_kernel.h"
#include "kernels/conv_plane_ops.h"

namespace fanin {

std::unique_ptr<ConvKernel> pack_conv_planes(const CondensedView& view,
                                             const ConvGeometry& geometry, const ConvPlaneOps& ops);

}  // namespace fanin
