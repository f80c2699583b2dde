// The layout of the expand kernel: words of tiles, see expand_kernel.h.
#pragma once

#include <cstdint>

#include "core/condensed.h"
#include "cuda/expand_shape.h"
#include "cuda/layout.h"

namespace fanin::cuda {

struct ExpandLayout {
  ValueType activations = ValueType::kBfloat16;
  int64_t in_features = 0;
  int64_t out_features = 0;
  int64_t groups = 1;       // of rows, with samples of their own
  int64_t group_tiles = 0;  // of rows
  int64_t chunks = 0;       // of columns
  int64_t vectors = 0;      // of four words
  double padding = 1.0;
  int64_t words = 0, starts = 0, outputs = 0, bias = 0;  // offsets in the blob

  int64_t tiles() const { return groups * group_tiles; }
  ExpandArgs arguments(const void* base) const;
};

// Whether every value is a number of that type: rounding it changes nothing. For float32, whether
// rounding to TF32 makes none infinite.
bool values_fit(const CondensedView& view, ValueType type);

// Values are stored in the type of the activations, for float32 rounded to TF32. Each of `groups`
// has as many rows. Throws as pack_stream, and std::invalid_argument if a value does not fit.
ExpandLayout pack_expand(const CondensedView& view, ValueType activations, int64_t groups,
                         Blob& blob);

}  // namespace fanin::cuda
