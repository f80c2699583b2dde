// The correct result of a layer in float64, and the allowed error of a float32 sum.
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

// Only stored entries before a row's padding take part, so that Inf and NaN propagate as specified.
Expected expect(const CondensedView& view, const float* x, int64_t batch, const Epilogue& epilogue);

// The first place where y differs from the expected value, as a sentence; empty if there is none.
// Where Inf or NaN is expected, y must equal it.
std::string difference(const Expected& expected, const float* y, int64_t out_features);

}  // namespace fanin
