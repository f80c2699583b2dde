// The panel kernels of int8 layers of this build, one per instruction set.
#pragma once

#include "kernels/quantized_panel_ops.h"

namespace fanin {

extern const QuantizedPanelOps kQuantizedQuads64Avx512vnni;
extern const QuantizedPanelOps kQuantizedPanel32Avx512bw;
extern const QuantizedPanelOps kQuantizedQuads32Avxvnni;
extern const QuantizedPanelOps kQuantizedPanel16Avx2;
extern const QuantizedPanelOps kQuantizedQuads16Dotprod;
extern const QuantizedPanelOps kQuantizedPanel16Neon;

}  // namespace fanin
