// Cursors over the rows of a condensed view, to pack them or to compare a packed layout with them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/condensed.h"

namespace fanin {

// The entries of one stored row that are still to be packed or found.
struct SourceRow {
  int64_t row = 0;
  int64_t at = 0;
  int64_t end = 0;  // before the padding

  // Moves past the entry of that column. False if there is none from here on, or if its value
  // differs.
  bool take(const CondensedView& view, int64_t column, float weight) {
    while (at < end && view.index(row, at) < column) ++at;
    if (at == end || view.index(row, at) != column) return false;
    const float stored = view.value(row, at++);
    return std::memcmp(&stored, &weight, sizeof(weight)) == 0;
  }
};

// A stored row from its first entry on, prefetched: packing interleaves more rows than the CPU's
// own prefetchers follow.
inline SourceRow source_row(const CondensedView& view, int64_t row) {
  constexpr int64_t kLine = 64;
  const auto fetch = [](const void* first, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += kLine)
      __builtin_prefetch(static_cast<const char*>(first) + at);
  };
  const int64_t bytes = view.fan_in * static_cast<int64_t>(value_bytes(view.value_type));
  fetch(static_cast<const char*>(view.values) + row * bytes, bytes);
  const int64_t index_bytes = view.fan_in * (view.index_type == IndexType::kUint16 ? 2 : 4);
  fetch(static_cast<const char*>(view.indices) + row * index_bytes, index_bytes);
  return {row, 0, view.true_fan_in(row)};
}

// The stored row of an output; -1 for an ablated one.
inline int64_t stored_row(const CondensedView& view, int64_t output) {
  const int32_t* end = view.rows + view.active;
  const int32_t* found = std::lower_bound(view.rows, end, output);
  return found != end && *found == output ? found - view.rows : -1;
}

// Whether the vector holds these floats, bit for bit.
inline bool same_bits(const std::vector<float>& held, const float* floats, int64_t count) {
  return held.size() == static_cast<size_t>(count) &&
         std::memcmp(held.data(), floats, held.size() * sizeof(float)) == 0;
}

// The number of pieces in which a layer of `units` (groups, blocks) is packed. A piece takes
// several milliseconds, which is worth starting a thread; a layer has at most 64, so that one
// mapping per array and piece stays far below the system's limit. Depends on the layer alone.
inline size_t piece_count(const CondensedView& view, size_t units) {
  constexpr int64_t kMinPieceWeights = int64_t{1} << 18;
  const int64_t worth = view.active * view.fan_in / kMinPieceWeights;
  return std::max<size_t>(
      1, std::min<size_t>(units, static_cast<size_t>(std::min<int64_t>(worth, 64))));
}

}  // namespace fanin
