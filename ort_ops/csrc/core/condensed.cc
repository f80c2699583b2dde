#include "core/condensed.h"

#include <cmath>
#include <cstdio>
#include <limits>

namespace fanin {
namespace {

// No streams: their locales have crashed in processes with another libstdc++ than the compiler's.
std::string text_of(const std::string& text) { return text; }
std::string text_of(int64_t number) { return std::to_string(number); }
std::string text_of(float number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", static_cast<double>(number));
  return text;
}

template <typename... Parts>
std::string sentence(const Parts&... parts) {
  return (std::string() + ... + text_of(parts));
}

std::string check_sizes(const CondensedView& view) {
  if (view.in_features < 1 || view.in_features > kMaxSize)
    return sentence("in_features is ", view.in_features, ", it must be 1 to ", kMaxSize);
  if (view.out_features < 1 || view.out_features > kMaxSize)
    return sentence("out_features is ", view.out_features, ", it must be 1 to ", kMaxSize);
  if (view.active < 0 || view.active > view.out_features)
    return sentence(view.active, " rows are stored, out_features is ", view.out_features);
  if (view.active > 0 && view.fan_in < 1)
    return sentence("fan-in is ", view.fan_in, " although ", view.active,
                    " rows are stored; leave ablated neurons out of values, indices and rows");
  // No array of the layer takes more than 16 bytes per entry.
  if (view.active > 0 && view.fan_in > std::numeric_limits<int64_t>::max() / 16 / view.active)
    return sentence("values of ", view.active, " x ", view.fan_in, " are too large to address");
  const bool quantized = view.value_type == ValueType::kInt8;
  if ((!view.bias && !quantized) ||
      (view.active > 0 && (!view.values || !view.indices || !view.rows)))
    return "an array of the layer is missing";
  return {};
}

std::string check_rows(const CondensedView& view) {
  int64_t before = -1;
  for (int64_t i = 0; i < view.active; ++i) {
    const int64_t row = view.rows[i];
    if (row < 0 || row >= view.out_features)
      return sentence("rows[", i, "] is ", row, ", out_features is ", view.out_features);
    if (row <= before)
      return sentence("rows[", i, "] is ", row, " after ", before, ", rows must increase strictly");
    before = row;
  }
  return {};
}

// The error at entry j of row i, whose columns before j are valid; empty for allowed padding.
std::string check_entry(const CondensedView& view, int64_t i, int64_t j) {
  const int64_t column = view.index(i, j);
  const std::string name = sentence("indices[", i, ", ", j, "]");
  if (column < 0 || column >= view.in_features)
    return sentence(name, " is ", column, ", in_features is ", view.in_features);
  if (j == 0) return {};
  const int64_t before = view.index(i, j - 1);
  const bool padding = j > 1 && before == view.index(i, j - 2);
  if (column != before)
    return column < before || padding
               ? sentence(name, " is ", column, " after ", before,
                          padding ? ", padding must stand at the end of the row"
                                  : ", indices must increase strictly over a row")
               : std::string();
  const float value = view.value(i, j);
  if (value != 0.0f || std::signbit(value))
    return sentence(name, " repeats column ", column, " with the value ", value,
                    "; only padding at the end of a row, which holds +0, may repeat");
  return {};
}

// Rows without padding, nearly all of them, are checked by one branch-free loop.
template <typename Index>
bool strictly_increasing(const Index* row, int64_t count, int64_t in_features) {
  bool sound = row[0] >= 0;
  for (int64_t j = 1; j < count; ++j) sound &= row[j] > row[j - 1];
  return sound && row[count - 1] < in_features;
}

template <typename Index>
std::string check_indices(const CondensedView& view) {
  const Index* row = static_cast<const Index*>(view.indices);
  for (int64_t i = 0; i < view.active; ++i, row += view.fan_in) {
    if (strictly_increasing(row, view.fan_in, view.in_features)) continue;
    for (int64_t j = 0; j < view.fan_in; ++j) {
      std::string why = check_entry(view, i, j);
      if (!why.empty()) return why;
    }
  }
  return {};
}

}  // namespace

int64_t CondensedView::true_fan_in(int64_t row) const {
  int64_t count = fan_in;
  while (count > 1 && index(row, count - 1) == index(row, count - 2)) --count;
  return count;
}

std::string validate(const CondensedView& view) {
  if (view.compute == ValueType::kBfloat16 && view.value_type != ValueType::kBfloat16)
    return sentence("values is ", value_type_name(view.value_type),
                    ", with compute bfloat16 it must be bfloat16");
  std::string why = check_sizes(view);
  if (why.empty()) why = check_rows(view);
  if (why.empty())
    why = view.index_type == IndexType::kUint16 ? check_indices<uint16_t>(view)
                                                : check_indices<int32_t>(view);
  return why;
}

}  // namespace fanin
