#include "core/condensed.h"

#include <cmath>
#include <limits>
#include <sstream>

namespace fanin {
namespace {

std::string sentence(const std::ostringstream& text) { return text.str(); }

}  // namespace

int64_t CondensedView::true_fan_in(int64_t row) const {
  int64_t count = fan_in;
  while (count > 1 && index(row, count - 1) == index(row, count - 2)) --count;
  return count;
}

std::string validate(const CondensedView& view) {
  std::ostringstream why;
  const int64_t int32_max = std::numeric_limits<int32_t>::max();
  if (view.in_features < 1 || view.in_features > int32_max) {
    why << "in_features is " << view.in_features << ", it must be 1 to " << int32_max;
    return sentence(why);
  }
  if (view.out_features < 1 || view.out_features > int32_max) {
    why << "out_features is " << view.out_features << ", it must be 1 to " << int32_max;
    return sentence(why);
  }
  if (view.active < 0 || view.active > view.out_features) {
    why << view.active << " rows are stored, out_features is " << view.out_features;
    return sentence(why);
  }
  if (view.active == 0) return {};
  if (view.fan_in < 1) {
    why << "fan-in is 0 although " << view.active
        << " rows are stored; leave ablated neurons out of values, indices and rows";
    return sentence(why);
  }
  if (view.fan_in > std::numeric_limits<int64_t>::max() / 8 / view.active) {
    why << "values of " << view.active << " x " << view.fan_in << " overflow";
    return sentence(why);
  }
  for (int64_t i = 0; i < view.active; ++i) {
    const int64_t row = view.rows[i];
    if (row < 0 || row >= view.out_features) {
      why << "rows[" << i << "] is " << row << ", out_features is " << view.out_features;
      return sentence(why);
    }
    if (i > 0 && row <= view.rows[i - 1]) {
      why << "rows[" << i << "] is " << row << " after " << view.rows[i - 1]
          << ", rows must increase strictly";
      return sentence(why);
    }
  }
  for (int64_t i = 0; i < view.active; ++i) {
    int64_t before = -1;
    bool padding = false;
    for (int64_t j = 0; j < view.fan_in; ++j) {
      const int64_t column = view.index(i, j);
      if (column < 0 || column >= view.in_features) {
        why << "indices[" << i << ", " << j << "] is " << column << ", in_features is "
            << view.in_features;
        return sentence(why);
      }
      if (column < before || (padding && column != before)) {
        why << "indices[" << i << ", " << j << "] is " << column << " after " << before
            << (padding ? ", padding must stand at the end of the row"
                        : ", indices must increase strictly over a row");
        return sentence(why);
      }
      if (column == before) {
        padding = true;
        const float value = view.values[i * view.fan_in + j];
        if (value != 0.0f || std::signbit(value)) {
          why << "indices[" << i << ", " << j << "] repeats column " << column << " with the value "
              << value << "; only padding at the end of a row, which holds +0, may repeat";
          return sentence(why);
        }
      }
      before = column;
    }
  }
  return {};
}

}  // namespace fanin
