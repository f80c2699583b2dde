// The part of kernel_check that runs the kernels of int8 layers.
#pragma once

namespace fanin {

// Prints a line for each row of the table, as kernel_check does for CondensedGemm; returns the
// number of wrong results.
int check_quantized();

}  // namespace fanin
