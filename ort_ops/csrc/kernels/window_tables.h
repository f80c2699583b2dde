// The window kernels of this build: one per instruction set and type of weights.
#pragma once

#include "kernels/window_ops.h"

namespace fanin {

extern const WindowOps kWindow32Avx2[kValueTypes];
extern const WindowOps kWindow63Avx512f[kValueTypes];
extern const WindowOps kWindow124Avx512bw;
extern const WindowOps kWindow126EmulatedAvx512bw[kValueTypes];
extern const WindowOps kWindow126Avx512vbmi[kValueTypes];
extern const WindowOps kWindow64Neon[kValueTypes];

}  // namespace fanin
