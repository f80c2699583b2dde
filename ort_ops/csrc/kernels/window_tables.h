// The window kernels of this build: one per instruction set and type of weights.
#pragma once

#include "kernels/window_ops.h"

namespace fanin {

extern const WindowOps kWindow32Avx2[kFloatTypes];
extern const WindowOps kWindow63Avx512f[kFloatTypes];
extern const WindowOps kWindow124Avx512bw;
extern const WindowOps kWindow126EmulatedAvx512bw[kFloatTypes];
extern const WindowOps kWindow126Avx512vbmi[kFloatTypes];
extern const WindowOps kWindow64Neon[kFloatTypes];

}  // namespace fanin
