#pragma once

namespace fanin {

// Compares dynamic quantization of each instruction set with its definition.
void check_dynamic_quantization();

}  // namespace fanin
