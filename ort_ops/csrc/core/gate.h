// A gate: the factor by which an activation such as HardSwish multiplies its input.
#pragma once

#include <cmath>

namespace fanin {

// v becomes v * clip(scale * v + shift, 0, 1). HardSwish has scale 1/6 and shift 1/2. The default
// is an open gate, which returns v unchanged.
struct Gate {
  float scale = 0.0f;
  float shift = 1.0f;

  bool open() const { return scale == 0.0f && shift == 1.0f; }

  // NaN stays NaN. Rounded once before the clip, as vector kernels do.
  float apply(float value) const {
    float share = std::fma(value, scale, shift);
    share = share < 0.0f ? 0.0f : share;
    return value * (share > 1.0f ? 1.0f : share);
  }
};

}  // namespace fanin
