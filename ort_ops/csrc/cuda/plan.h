// How a launch is cut into blocks, which depends on the layer, the batch and the device alone.
#pragma once

#include <cstdint>

#include "core/gate.h"
#include "core/value_type.h"
#include "cuda/expand_layout.h"
#include "cuda/layout.h"

namespace fanin::cuda {

struct DeviceLimits {
  int64_t multiprocessors = 132;
  int64_t shared_bytes_per_block = 232448;  // the most that a kernel can ask for
  int64_t shared_bytes_per_multiprocessor = 233472;
  int64_t threads_per_multiprocessor = 2048;
  int64_t cluster = 8;  // blocks that can read each other's shared memory; 1: none can
  // That instructions are for: ten times the major version, and the minor one.
  int64_t capability = 90;
};

// Shared memory that the system reserves in each block.
inline constexpr int64_t kReserved = 1024;

// Whether the rows of x begin at multiples of `alignment` bytes.
bool rows_aligned(const void* x, int64_t row_bytes, int64_t alignment);

// The limit of the grid's second dimension.
inline constexpr int64_t kMaxGridY = 65535;

// The arguments of a run, which complete those of a layout.
struct RunArguments {
  const void* x = nullptr;
  const void* residual = nullptr;
  void* y = nullptr;
  int64_t batch = 0;
  float clip_min = 0;
  float clip_max = 0;
  Gate gate;  // of convolutions
};

struct StreamPlan {
  int samples = 1;  // in shared memory at a time
  bool staged = true;
  int warps = 4;
  int warps_per_row = 1;
  int64_t grid_x = 1;
  int64_t grid_y = 1;
  int64_t shared_bytes = 0;
};

// Samples of x that fit into the stream kernel's shared memory at a time, a power of two up to 8; 0
// if not even one fits, or if there are more columns than 16-bit indices allow.
int64_t stageable_samples(int64_t in_features, ValueType activations, const DeviceLimits& limits);

// The order of a row's sum does not depend on the batch.
StreamPlan plan_stream(const StreamLayout& layout, int64_t batch, ValueType activations,
                       const DeviceLimits& limits);

struct PanelPlan {
  int warps = 4;
  int bands_per_block = 1;
  bool vector_x = false;
  int64_t grid_x = 1;  // a multiple of the cluster
  int64_t grid_y = 1;
  int64_t shared_bytes = 0;
};

// The same for all batches, so that the order of sums does not depend on the batch.
PanelCut panel_cut(int64_t in_features, const DeviceLimits& limits);

PanelPlan plan_panel(const PanelLayout& layout, const RunArguments& run, ValueType activations,
                     const DeviceLimits& limits);

struct ExpandPlan {
  int tile = 8;  // samples at a time, one of kExpandTiles
  int warps = 4;
  int parts = 1;
  int cluster = 1;
  int stages = ExpandShape::kLeastStages;
  bool vector_x = false;
  int64_t grid_x = 1;  // a multiple of the cluster
  int64_t grid_y = 1;
  int64_t shared_bytes = 0;
};

// Sizes of tiles of samples that there are instances for.
inline constexpr int kExpandTiles[] = {8, 16, 32, 64, 128};

// The parts of the columns, and so the order of a row's sum, do not depend on the batch.
ExpandPlan plan_expand(const ExpandLayout& layout, const RunArguments& run,
                       const DeviceLimits& limits);

StreamArgs complete(StreamArgs args, const RunArguments& run, const StreamPlan& plan,
                    ValueType activations);
PanelArgs complete(PanelArgs args, const RunArguments& run, const PanelPlan& plan);
ExpandArgs complete(ExpandArgs args, const RunArguments& run, const ExpandPlan& plan);

}  // namespace fanin::cuda
