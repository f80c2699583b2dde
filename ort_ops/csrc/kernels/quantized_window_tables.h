// The window kernels of int8 layers of this build.
#pragma once

#include "kernels/quantized_window_ops.h"

namespace fanin {

extern const QuantizedWindowOps kQuantizedWindow128PairsAvx512vnni;
extern const QuantizedWindowOps kQuantizedWindow32QuadsAvx2;
extern const QuantizedWindowOps kQuantizedWindow32QuadsAvxvnni;
extern const QuantizedWindowOps kQuantizedWindow64Avx512vbmi;
extern const QuantizedWindowOps kQuantizedWindow64FourAvx512vbmi;
extern const QuantizedWindowOps kQuantizedWindow128Avx512vbmi;
extern const QuantizedWindowOps kQuantizedWindow128TwoAvx512vbmi;
extern const QuantizedWindowOps kQuantizedWindow256Avx512vbmi;
extern const QuantizedWindowOps kQuantizedWindow256NofetchAvx512vbmi;
extern const QuantizedWindowOps kQuantizedWindow64Dotprod;
extern const QuantizedWindowOps kQuantizedWindow64Neon;

}  // namespace fanin
