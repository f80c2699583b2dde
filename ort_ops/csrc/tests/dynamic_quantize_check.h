#pragma once

namespace fanin {

// Compares dynamic quantization of each instruction set with its definition; returns the number of
// wrong results.
int check_dynamic_quantization();

}  // namespace fanin
