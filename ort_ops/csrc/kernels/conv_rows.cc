#include "kernels/conv_rows.h"

#include "kernels/source_row.h"

namespace fanin {

ConvRows::ConvRows(const CondensedView& view) : bias(view.bias, view.bias + view.out_features) {
  int64_t stored = 0;
  for (int64_t o = 0; o < view.out_features; ++o) {
    starts.push_back(values.size());
    if (stored == view.active || view.rows[stored] != o) continue;
    const int64_t entries = view.true_fan_in(stored);
    for (int64_t j = 0; j < entries; ++j) {
      values.push_back(view.value(stored, j));
      indices.push_back(static_cast<int32_t>(view.index(stored, j)));
    }
    ++stored;
  }
  starts.push_back(values.size());
}

int64_t ConvRows::bytes() const {
  return static_cast<int64_t>(values.size() * (sizeof(float) + sizeof(int32_t)) +
                              starts.size() * sizeof(size_t) + bias.size() * sizeof(float));
}

bool ConvRows::hold(const CondensedView& view) const {
  if (!same_bits(bias, view.bias, view.out_features)) return false;
  int64_t stored = 0;
  for (int64_t o = 0; o < view.out_features; ++o) {
    const bool active = stored < view.active && view.rows[stored] == o;
    const int64_t count = active ? view.true_fan_in(stored) : 0;
    if (static_cast<int64_t>(starts[o + 1] - starts[o]) != count) return false;
    SourceRow row{stored, 0, count};
    for (size_t at = starts[o]; at < starts[o + 1]; ++at)
      if (!row.take(view, indices[at], values[at])) return false;
    stored += active;
  }
  return true;
}

}  // namespace fanin
