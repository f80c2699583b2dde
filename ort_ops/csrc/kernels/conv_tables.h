// The convolution kernels of this build, one per instruction set.
#pragma once

#include "kernels/conv_ops.h"

namespace fanin {

extern const ConvOps kConvPanel16Avx2;
extern const ConvOps kConvPanel32Avx512f;
extern const ConvOps kConvPanel16Neon;

}  // namespace fanin
