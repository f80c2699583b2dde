// Prefetching for the next fill or drain. Like panel_core.h, only for translation units of one
// instruction set: internal linkage.
#pragma once

#include "kernels/panel_ops.h"

namespace fanin {
namespace {

constexpr int kLineBytes = 64;

// Prefetches a group's share of the lines that are needed next into L2.
inline __attribute__((always_inline)) void fetch_ahead(PanelAhead& ahead) {
  for (int64_t i = 0; i < ahead.strips_per_group && ahead.strips > 0; ++i) {
#pragma GCC unroll 4
    for (int r = 0; r < kPanelAheadRows; ++r) __builtin_prefetch(ahead.at + r * ahead.stride, 0, 2);
    --ahead.strips;
    ahead.at += kPanelAheadRows * ahead.stride;
    if (++ahead.strip == ahead.strips_per_line) {
      ahead.at += kLineBytes - ahead.strip * kPanelAheadRows * ahead.stride;
      ahead.strip = 0;
    }
  }
}

}  // namespace
}  // namespace fanin
