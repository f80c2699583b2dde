// The convolution kernels of this build, one per instruction set.
#pragma once

#include "kernels/depthwise_conv_ops.h"
#include "kernels/direct_conv_ops.h"
#include "kernels/panel_conv_ops.h"

namespace fanin {

extern const PanelConvOps kPanelConv16Avx2;
extern const PanelConvOps kPanelConv32Avx512f;
extern const PanelConvOps kPanelConv32LoadsAvx512f;
extern const PanelConvOps kPanelConv16Neon;

extern const DepthwiseConvOps kDepthwiseConv16Avx512f;
extern const DepthwiseConvOps kDepthwiseConv4Neon;
extern const DepthwiseConvOps kDepthwiseConv8Avx2;

extern const DirectConvOps kDirectConvAvx2;
extern const DirectConvOps kDirectConvAvx512f;
extern const DirectConvOps kDirectConvNeon;

}  // namespace fanin
