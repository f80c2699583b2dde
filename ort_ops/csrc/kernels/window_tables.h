// The window kernels of this build: one per instruction set and type of weights.
#pragma once

#include "kernels/window_ops.h"

namespace fanin {

extern const WindowOps kWindowBytePlane32Avx2[kValueTypes];
extern const WindowOps kWindowLanes63Avx512f[kValueTypes];
extern const WindowOps kWindowWordPlane124Avx512bw;
extern const WindowOps kWindowBytePlane126EmulatedAvx512bw[kValueTypes];
extern const WindowOps kWindowBytePlane126Avx512vbmi[kValueTypes];
extern const WindowOps kWindowBytePlane64Neon[kValueTypes];

}  // namespace fanin
