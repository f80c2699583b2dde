#include "kernels/quantized_conv_columns.h"

#include <algorithm>
#include <utility>

namespace fanin {

ConvColumnOrder ConvColumnOrder::of_image(const ConvGeometry& geometry) {
  const int64_t step = geometry.dilations[1] * geometry.in_channels;
  return {step, (geometry.kernel[1] - 1) * step + geometry.in_channels};
}

ConvColumnOrder ConvColumnOrder::dense(const ConvGeometry& geometry) {
  return {geometry.in_channels, geometry.kernel[1] * geometry.in_channels};
}

ConvColumns::ConvColumns(const CondensedView& view, const ConvGeometry& geometry,
                         const ConvColumnOrder& order)
    : view_(view),
      values_(static_cast<size_t>(view.active * view.fan_in)),
      indices_(values_.size()) {
  view_.in_features = geometry.kernel[0] * order.segment;
  const auto* values = static_cast<const int8_t*>(view.values);
  std::vector<std::pair<int64_t, int8_t>> entries;
  for (int64_t row = 0; row < view.active; ++row) {
    const int64_t group = view.rows[row] / geometry.group_outputs();
    entries.clear();
    for (int64_t j = 0; j < view.true_fan_in(row); ++j) {
      const int64_t index = view.index(row, j), tap = index % geometry.taps();
      entries.emplace_back(tap / geometry.kernel[1] * order.segment +
                               tap % geometry.kernel[1] * order.step +
                               group * geometry.group_inputs() + index / geometry.taps(),
                           values[row * view.fan_in + j]);
    }
    std::sort(entries.begin(), entries.end());
    const size_t first = static_cast<size_t>(row * view.fan_in);
    for (size_t j = 0; j < static_cast<size_t>(view.fan_in); ++j) {
      const bool padding = j >= entries.size();
      indices_[first + j] = static_cast<int32_t>(padding ? entries.back().first : entries[j].first);
      values_[first + j] = padding ? int8_t{0} : entries[j].second;
    }
  }
}

CondensedView ConvColumns::view() const {
  CondensedView view = view_;
  view.values = values_.data();
  view.indices = indices_.data();
  view.index_type = IndexType::kInt32;
  return view;
}

}  // namespace fanin
