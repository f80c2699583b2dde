// Depthwise convolutions whose filters are whole: channels lie side by side in a vector, as they
// do in what a dense library computes.
#pragma once

#include "kernels/conv_kernel.h"
#include "kernels/conv_lane_ops.h"

namespace fanin {

// Whether pack_conv_lanes can hold the layer: one channel a group and filter, and in every filter a
// weight for each place of the window (a missing one would meet pixels all the same).
bool fits_lanes(const CondensedView& view, const ConvGeometry& geometry);

// Throws std::invalid_argument for a layer that does not fit.
std::unique_ptr<ConvKernel> pack_conv_lanes(const CondensedView& view, const ConvGeometry& geometry,
                                            const ConvLaneOps& ops);

}  // namespace fanin
