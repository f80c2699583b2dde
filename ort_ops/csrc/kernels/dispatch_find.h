// Finding a row of a kernel table by its name.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "core/cpu_features.h"

namespace fanin {

// Throws std::invalid_argument if the table lacks the name or the CPU cannot run it.
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
