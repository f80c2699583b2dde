// The window kernels of int8 layers of this build.
#pragma once

#include "kernels/quantized_window_ops.h"

namespace fanin {

extern const QuantizedWindowOps kQuantizedWindow64Avx512vbmi;
extern const QuantizedWindowOps kQuantizedWindow128Avx512vbmi;
extern const QuantizedWindowOps kQuantizedWindow256Avx512vbmi;

}  // namespace fanin
