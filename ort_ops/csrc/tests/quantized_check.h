// The part of kernel_check that runs the kernels of int8 layers.
#pragma once

namespace fanin {

// Prints a line for each kernel of the table, as kernel_check does for CondensedGemm.
void check_quantized();

}  // namespace fanin
