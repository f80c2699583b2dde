// The window kernels of this build, one per instruction set.
#pragma once

#include "kernels/window_ops.h"

namespace fanin {

extern const WindowOps kWindowBytePlane32Avx2;
extern const WindowOps kWindowLanes30Avx512f;
extern const WindowOps kWindowWordPlane62Avx512bw;
extern const WindowOps kWindowWordPlane124Avx512bw;
extern const WindowOps kWindowBytePlane126EmulatedAvx512bw;
extern const WindowOps kWindowBytePlane126Avx512vbmi;

}  // namespace fanin
