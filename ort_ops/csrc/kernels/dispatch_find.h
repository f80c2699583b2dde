// Finding a row of a kernel table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/cpu_features.h"

namespace fanin {

template <typename Row, typename Fits>
const Row& first_row(const std::vector<Row>& table, const Fits& fits) {
  for (const Row& row : table)
    if (fits(row)) return row;
  throw std::logic_error("the kernel table has no row for this layer");
}

// The last batch that `row`, selected for batch `first`, serves. A row that serves every batch ends
// where a preferred one that also does so begins; fits(row, batch).
template <typename Row, typename Fits>
int64_t last_batch_of(const std::vector<Row>& table, const Row& row, int64_t first,
                      const Fits& fits) {
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  int64_t last = row.batches.max;
  if (last != kAny) return last;
  for (const Row& preferred : table) {
    if (&preferred == &row) break;
    const int64_t begin = preferred.batches.min;
    if (preferred.batches.max == kAny && first < begin && fits(preferred, begin))
      last = std::min(last, begin - 1);
  }
  return last;
}

// The row of that name. Throws std::invalid_argument if the table lacks the name or the CPU cannot
// run it.
template <typename Row>
const Row& find_row(const std::vector<Row>& table, const std::string& name) {
  std::string known;
  for (const Row& row : table) {
    if (name == row.name) {
      if (is_supported(row.isa)) return row;
      throw std::invalid_argument("kernel '" + name + "' needs " + isa_name(row.isa) +
                                  ", which this CPU lacks");
    }
    if (known.find(row.name) == std::string::npos) known += (known.empty() ? "" : ", ") + row.name;
  }
  throw std::invalid_argument("kernel '" + name + "' is unknown; the table has " + known);
}

}  // namespace fanin
