// The part of kernel_check that runs convolutions of int8 weights.
#pragma once

namespace fanin {

// As check_quantized.
void check_quantized_convolutions();

}  // namespace fanin
