// The condensed rows of a convolution, without their padding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/condensed.h"

namespace fanin {

struct ConvRows {
  explicit ConvRows(const CondensedView& view);

  std::vector<float> bias;
  std::vector<size_t> starts;  // [out_channels + 1], an ablated output has none
  std::vector<float> values;
  std::vector<int32_t> indices;

  int64_t bytes() const;

  // See ConvKernel::holds.
  bool hold(const CondensedView& view) const;
};

}  // namespace fanin
