// The panel kernels of this build, one per instruction set.
#pragma once

#include "kernels/panel_ops.h"

namespace fanin {

extern const PanelOps kPanel16Avx2;
extern const PanelOps kPanel32Avx512f;
extern const PanelOps kPanel32LoadsAvx512f;
extern const PanelOps kPairs32Avx512bf16;
extern const PanelOps kPanel16Neon;

}  // namespace fanin
