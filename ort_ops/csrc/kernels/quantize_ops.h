// The part of dynamic quantization that depends on the instruction set, see
// core/dynamic_quantize.h. Included by translation units of wider instruction sets, so it defines
// no function and includes no std template.
#pragma once

#include <cstdint>

namespace fanin {

// Of some numbers and 0. Unless all are finite, low and high are any numbers.
struct QuantizeRange {
  float low;
  float high;
  bool finite;
};

struct QuantizeScale {
  float scale;       // above 0
  float zero_point;  // an integer from 0 to 255
};

struct QuantizeOps {
  QuantizeRange (*range)(const float* x, int64_t count);

  // to[i] = saturate(round_half_even(x[i] / scale) + zero_point), the quotient rounded to float32.
  // The range of the numbers is finite and has this scale, but kQuantizePlain takes any numbers.
  void (*quantize)(const float* x, int64_t count, const QuantizeScale& by, uint8_t* to);

  double microseconds_per_number;  // of each of the two, for sharing them among threads
};

extern const QuantizeOps kQuantizePlain;
extern const QuantizeOps kQuantizeAvx512bw;
extern const QuantizeOps kQuantizeAvx2;
extern const QuantizeOps kQuantizeNeon;

}  // namespace fanin
