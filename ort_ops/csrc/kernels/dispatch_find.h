// Finding a row of a kernel table by its name.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/cpu_features.h"

namespace fanin {

// Throws std::invalid_argument for a name that the table or the CPU lacks.
template <typename Row>
const Row& find_row(const std::vector<Row>& table, const std::string& name) {
  std::string known;
  for (const Row& row : table) {
    if (name == row.name) {
      const std::vector<Isa> supported = supported_isas();
      if (std::find(supported.begin(), supported.end(), row.isa) != supported.end()) return row;
      throw std::invalid_argument("kernel '" + name + "' needs " + isa_name(row.isa) +
                                  ", which this CPU lacks");
    }
    known += (known.empty() ? "" : ", ") + row.name;
  }
  throw std::invalid_argument("kernel '" + name + "' is unknown; the table has " + known);
}

}  // namespace fanin
