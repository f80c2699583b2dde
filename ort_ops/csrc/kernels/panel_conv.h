// Convolutions in panels: a vector holds pixels.
#pragma once

#include "kernels/conv_kernel.h"
#include "kernels/panel_conv_ops.h"

namespace fanin {

std::unique_ptr<ConvKernel> pack_panel_conv(const CondensedView& view, const ConvGeometry& geometry,
                                            const PanelConvOps& ops, const Executor& executor);

}  // namespace fanin
