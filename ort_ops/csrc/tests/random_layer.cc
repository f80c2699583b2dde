#include "tests/random_layer.h"

#include <algorithm>
#include <cstring>

namespace fanin {
namespace {

int64_t below(int64_t bound, std::mt19937& random) {
  return std::uniform_int_distribution<int64_t>(0, bound - 1)(random);
}

// Distinct columns in ascending order, drawn from a range by Floyd's method.
std::vector<int64_t> draw_columns(int64_t first, int64_t range, int64_t count,
                                  std::mt19937& random) {
  std::vector<int64_t> columns;
  for (int64_t last = range - count; last < range; ++last) {
    const int64_t drawn = first + below(last + 1, random);
    const auto place = std::lower_bound(columns.begin(), columns.end(), drawn);
    if (place != columns.end() && *place == drawn)
      columns.push_back(first + last);  // above all drawn so far
    else
      columns.insert(place, drawn);
  }
  return columns;
}

std::vector<int64_t> columns_of_row(const LayerSpec& spec, std::mt19937& random) {
  if (spec.mask == Mask::kEnds) {
    std::vector<int64_t> columns(static_cast<size_t>(spec.fan_in));
    for (int64_t j = 0; j < spec.fan_in; ++j)
      columns[j] = 2 * j < spec.fan_in ? j : spec.in_features - spec.fan_in + j;
    return columns;
  }
  if (spec.mask == Mask::kUniform) return draw_columns(0, spec.in_features, spec.fan_in, random);
  const int64_t range = std::min(spec.in_features, 2 * spec.fan_in);
  return draw_columns(below(spec.in_features - range + 1, random), range, spec.fan_in, random);
}

uint16_t bits16(float value, ValueType type) {
  uint16_t bits;
  if (type == ValueType::kFloat16) {
    narrow_float16(&value, 1, &bits);
  } else {
    uint32_t wide;
    std::memcpy(&wide, &value, sizeof(wide));
    bits = static_cast<uint16_t>(wide >> 16);
  }
  return bits;
}

}  // namespace

CondensedView Layer::view() const {
  CondensedView view;
  view.in_features = spec.in_features;
  view.out_features = spec.out_features;
  view.active = spec.active;
  view.fan_in = spec.fan_in;
  view.value_type = spec.values;
  view.values = spec.values == ValueType::kFloat32 ? static_cast<const void*>(values32.data())
                : spec.values == ValueType::kInt8  ? static_cast<const void*>(values8.data())
                                                   : values16.data();
  view.index_type = spec.indices;
  view.indices = spec.indices == IndexType::kInt32 ? static_cast<const void*>(indices32.data())
                                                   : indices16.data();
  view.rows = rows.data();
  view.bias = bias.empty() ? nullptr : bias.data();
  return view;
}

Layer Layer::widened() const {
  Layer wide = *this;
  wide.spec.values = ValueType::kFloat32;
  wide.values16.clear();
  wide.values32.resize(static_cast<size_t>(spec.active * spec.fan_in));
  const CondensedView narrow = view();
  for (int64_t i = 0; i < spec.active; ++i)
    for (int64_t j = 0; j < spec.fan_in; ++j)
      wide.values32[static_cast<size_t>(i * spec.fan_in + j)] = narrow.value(i, j);
  return wide;
}

std::vector<float> random_floats(size_t count, std::mt19937& random) {
  std::vector<float> floats(count);
  for (float& value : floats) value = static_cast<float>(static_cast<int32_t>(random())) * 0x1p-30f;
  return floats;
}

Layer make_layer(const LayerSpec& spec, std::mt19937& random) {
  Layer layer;
  layer.spec = spec;
  for (int64_t row : draw_columns(0, spec.out_features, spec.active, random))
    layer.rows.push_back(static_cast<int32_t>(row));
  if (spec.values != ValueType::kInt8)
    layer.bias = random_floats(static_cast<size_t>(spec.out_features), random);
  for (int64_t i = 0; i < spec.active; ++i) {
    std::vector<int64_t> columns = columns_of_row(spec, random);
    std::vector<float> values = random_floats(columns.size(), random);
    if (spec.padded && spec.fan_in > 0 && below(2, random) == 0) {
      const size_t kept = static_cast<size_t>(1 + below(spec.fan_in, random));
      std::fill(columns.begin() + kept, columns.end(), columns[kept - 1]);
      std::fill(values.begin() + kept, values.end(), 0.0f);
    }
    for (int64_t column : columns)
      if (spec.indices == IndexType::kInt32)
        layer.indices32.push_back(static_cast<int32_t>(column));
      else
        layer.indices16.push_back(static_cast<uint16_t>(column));
    for (float value : values)
      if (spec.values == ValueType::kFloat32)
        layer.values32.push_back(value);
      else if (spec.values == ValueType::kInt8)
        layer.values8.push_back(static_cast<int8_t>(value * 64.0f));
      else
        layer.values16.push_back(bits16(value, spec.values));
  }
  return layer;
}

}  // namespace fanin
