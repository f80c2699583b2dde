// What a layer must give, in float64, and how far a float32 sum may be from it.
#pragma once

#include <string>
#include <vector>

#include "core/condensed.h"
#include "core/gemm.h"

namespace fanin {

struct Expected {
  std::vector<double> y;      // [batch, out_features], after residual and clip
  std::vector<double> bound;  // of the rounding errors of any order of summation
};

// Only stored entries before a row's padding take part, so that Inf and NaN spread as promised.
Expected expect(const CondensedView& view, const float* x, int64_t batch, const Epilogue& epilogue);

// The first place where y is not what is expected, as a sentence; empty if there is none. Where
// Inf or NaN is expected, y must be that.
std::string difference(const Expected& expected, const float* y, int64_t out_features);

}  // namespace fanin
