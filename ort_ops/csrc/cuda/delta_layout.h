// The layout of the delta kernel: chains of weights with 8-bit steps, see delta_kernel.h.
#pragma once

#include <cstdint>

#include "core/condensed.h"
#include "core/executor.h"
#include "cuda/delta_kernel.h"
#include "cuda/layout.h"

namespace fanin::cuda {

// How rows are cut. Sums depend on the parts.
struct DeltaCut {
  int64_t rows = 1;   // of a tile
  int64_t parts = 1;  // chains of a row; rows * parts <= kDeltaThreads
};

struct DeltaLayout {
  ValueType value_type = ValueType::kFloat32;
  int64_t in_features = 0;
  int64_t out_features = 0;
  int64_t active = 0;  // outputs with weights
  DeltaCut cut;
  int64_t tile_count = 0;
  int64_t steps = 0;  // of all tiles; 0 if they differ
  int64_t chunks = 0;
  double padding = 1.0;
  int64_t values = 0, deltas = 0, starts = 0, tiles = 0, outputs = 0, bias = 0;  // offsets

  DeltaArgs arguments(const void* base) const;
};

// Entries of the longest row.
int64_t longest_row(const CondensedView& view);

// Throws as pack_stream, and std::invalid_argument for more columns than 16 bits count.
DeltaLayout pack_delta(const CondensedView& view, const DeltaCut& cut, const Executor& executor,
                       Blob& blob);

}  // namespace fanin::cuda
