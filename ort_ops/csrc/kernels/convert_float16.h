// Conversion of arrays with F16C (if the CPU has it) or NEON; see core/value_type.h.
#pragma once

#include <cstdint>

namespace fanin {

// All convert whole vectors and return the number of converted elements.
int64_t widen_float16_f16c(const uint16_t* from, int64_t count, float* to);
int64_t narrow_float16_f16c(const float* from, int64_t count, uint16_t* to);

int64_t widen_float16_neon(const uint16_t* from, int64_t count, float* to);
int64_t narrow_float16_neon(const float* from, int64_t count, uint16_t* to);

}  // namespace fanin
