// What the parts of kernel_check share: counting wrong results, and a line for each kernel.
#pragma once

#include <cstdio>
#include <set>
#include <string>

#include "core/cpu_features.h"

namespace fanin {

inline int failures = 0;

inline void expect_that(bool right, const std::string& what) {
  if (right) return;
  if (++failures <= 20) std::printf("WRONG %s\n", what.c_str());
}

// Calls check(row) for the rows that this CPU supports, and prints how each kernel did.
template <typename Table, typename Check>
void check_each_kernel(const Table& table, const Check& check) {
  std::set<std::string> seen;  // a kernel may have two rows
  for (const auto& row : table) {
    if (!seen.insert(row.name).second) continue;
    if (!is_supported(row.isa)) {
      std::printf("absent %s\n", row.name.c_str());
      continue;
    }
    const int before = failures;
    check(row);
    std::printf("%s %s\n", failures == before ? "right" : "wrong", row.name.c_str());
    std::fflush(stdout);
  }
}

}  // namespace fanin
