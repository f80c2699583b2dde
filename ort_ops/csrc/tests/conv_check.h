// The part of kernel_check that runs the kernels of convolutions.
#pragma once

namespace fanin {

// Prints a line for each kernel of the table, as kernel_check does for CondensedGemm.
void check_convolutions();

}  // namespace fanin
