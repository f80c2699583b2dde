// The condensed format of a constant fan-in layer, as views of memory owned elsewhere.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "core/value_type.h"

namespace fanin {

enum class IndexType { kUint16, kInt32 };

// Sizes of a layer have 31 bits, so that sums and products of a few of them fit 64.
inline constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();

// Row i of the stored rows holds the weights of output row rows[i]:
//   y[rows[i]] = bias[rows[i]] + sum_j values[i, j] * x[indices[i, j]]
// Outputs that `rows` does not list are ablated: they equal the bias.
struct CondensedView {
  int64_t in_features = 0;
  int64_t out_features = 0;
  int64_t active = 0;            // stored rows
  int64_t fan_in = 0;            // stored entries per row, padding included
  const void* values = nullptr;  // [active, fan_in] of value_type
  ValueType value_type = ValueType::kFloat32;
  const void* indices = nullptr;  // [active, fan_in] of index_type
  IndexType index_type = IndexType::kInt32;
  const int32_t* rows = nullptr;  // [active], strictly increasing
  const float* bias = nullptr;    // [out_features]; int8 layers have none, it comes with each run
  // kBfloat16: x is rounded to bfloat16 before it is multiplied, and so are the values already.
  ValueType compute = ValueType::kFloat32;

  // Fan-in / in_features. With padding, a row can hold more entries than there are inputs.
  double density() const {
    return static_cast<double>(fan_in < in_features ? fan_in : in_features) /
           static_cast<double>(in_features);
  }

  int64_t index(int64_t row, int64_t entry) const {
    const int64_t at = row * fan_in + entry;
    return index_type == IndexType::kUint16 ? static_cast<const uint16_t*>(indices)[at]
                                            : static_cast<const int32_t*>(indices)[at];
  }

  float value(int64_t row, int64_t entry) const {
    const int64_t at = row * fan_in + entry;
    if (value_type == ValueType::kFloat32) return static_cast<const float*>(values)[at];
    return load_value(values, value_type, at);
  }

  // Entries of a row before its padding. Padding repeats the row's last true column and holds +0;
  // it must never be multiplied with x, since 0 * Inf is NaN.
  int64_t true_fan_in(int64_t row) const;
};

// Why the view breaks the format of docs/formats.md, as one sentence that names the place and the
// values ("indices[3, 7] is 900, in_features is 784"); empty if it is valid. A valid view cannot
// make a kernel read or write out of bounds.
std::string validate(const CondensedView& view);

}  // namespace fanin
