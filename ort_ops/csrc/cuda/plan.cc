#include "cuda/plan.h"

#include <algorithm>
#include <limits>

namespace fanin::cuda {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t bytes_of(ValueType type) { return static_cast<int64_t>(value_bytes(type)); }

template <typename Args>
void set_run(Args& args, const RunArguments& run) {
  args.x = run.x;
  args.residual = run.residual;
  args.y = run.y;
  args.batch = run.batch;
  args.clip_min = run.clip_min;
  args.clip_max = run.clip_max;
}

bool rows_aligned(const void* x, int64_t row_bytes, int64_t alignment) {
  return reinterpret_cast<uintptr_t>(x) % static_cast<uintptr_t>(alignment) == 0 &&
         row_bytes % alignment == 0;
}

// Shared memory that the system keeps for itself in each block.
constexpr int64_t kReserved = 1024;

}  // namespace

int64_t stageable_samples(int64_t in_features, ValueType activations, const DeviceLimits& limits) {
  // Beside x there may be a sum for each of 16 warps.
  for (int64_t samples = 8; samples > 0; samples /= 2)
    if (stream_shared_bytes(in_features, bytes_of(activations), samples, true, 16, 2) <=
        limits.shared_bytes_per_block)
      return samples;
  return 0;
}

StreamPlan plan_stream(const StreamLayout& layout, int64_t batch, ValueType activations,
                       const DeviceLimits& limits) {
  StreamPlan plan;
  const int64_t most =
      layout.index_bytes == 2 ? stageable_samples(layout.in_features, activations, limits) : 0;
  plan.staged = most > 0;
  while (plan.samples < std::min(batch, most)) plan.samples *= 2;
  plan.grid_y = std::min(kMaxGridY, ceil_div(batch, plan.samples));

  // Rows share warps until every multiprocessor has eight of them.
  while (plan.warps_per_row < 8 && layout.chunks > 32 * plan.warps_per_row &&
         layout.active * plan.warps_per_row < 8 * limits.multiprocessors)
    plan.warps_per_row *= 2;

  const int64_t entries = 16 / bytes_of(layout.value_type);
  const int64_t row_bytes = layout.chunks * (16 + entries * layout.index_bytes);
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int warps : {4, 8, 12, 16}) {
    if (warps % plan.warps_per_row != 0) continue;
    const int64_t rows = warps / plan.warps_per_row;
    const int64_t shared =
        stream_shared_bytes(layout.in_features, bytes_of(activations), plan.samples, plan.staged,
                            warps, plan.warps_per_row);
    const int64_t resident =
        std::max<int64_t>(1, std::min(limits.shared_bytes_per_multiprocessor / (shared + kReserved),
                                      limits.threads_per_multiprocessor / (32 * warps)));
    const int64_t blocks = ceil_div(layout.out_features, rows);
    // Bytes that the busiest multiprocessor reads: its rows, and x once for each resident block.
    const int64_t turns = ceil_div(blocks, limits.multiprocessors);
    const int64_t bytes = turns * rows * row_bytes + std::min(turns, resident) * shared;
    if (bytes >= least) continue;
    least = bytes;
    plan.warps = warps;
    plan.shared_bytes = shared;
    plan.grid_x = std::min(blocks, resident * limits.multiprocessors);
  }
  return plan;
}

int64_t panel_ring(const DeviceLimits& limits) {
  const auto chunks = [](int64_t bytes) {
    return (bytes - PanelShape::kStride) / (PanelShape::kColumns * PanelShape::kStride);
  };
  // Two blocks on a multiprocessor hide each other's barriers, unless the ring gets too short for
  // the packer to even out rows.
  const int64_t half = chunks(limits.shared_bytes_per_multiprocessor / 2 - kReserved);
  const int64_t whole = chunks(limits.shared_bytes_per_block);
  return std::max<int64_t>(2, half >= 4 ? std::min<int64_t>(half, 8) : std::min<int64_t>(whole, 8));
}

PanelPlan plan_panel(const PanelLayout& layout, const RunArguments& run, ValueType activations,
                     const DeviceLimits& limits) {
  PanelPlan plan;
  const int64_t size = bytes_of(activations);
  plan.vector_x = rows_aligned(run.x, layout.in_features * size, 4 * size);
  const int64_t tile = PanelShape::kColumnBytes / size;
  const int64_t tiles = ceil_div(run.batch, tile);
  plan.grid_y = std::min(kMaxGridY, tiles);
  plan.shared_bytes = panel_shared_bytes(layout.ring);
  // Clocks of shared memory that the busiest multiprocessor takes: an entry of a row reads one
  // column, staging a column writes it and reads it from the L1; a step has a barrier.
  constexpr int64_t kStagingClocks = 2, kStepClocks = 60;
  const int64_t unit_clocks = PanelShape::kRows * PanelShape::kEntries + 3;
  const int64_t group_clocks =
      layout.busy_groups > 0 ? layout.units * unit_clocks / layout.busy_groups : 0;
  const int64_t tile_clocks = layout.steps * (PanelShape::kColumns * kStagingClocks + kStepClocks);
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int groups_per_warp : {1, 2})
    for (int warps : {4, 8, 12, 16}) {
      if ((groups_per_warp > 1 || !plan.vector_x) && warps < 8)
        continue;  // PanelKernel::kMaxPieces
      const int64_t groups = static_cast<int64_t>(warps) * groups_per_warp;
      const int64_t blocks = ceil_div(std::max<int64_t>(1, layout.busy_groups), groups) * tiles;
      const int64_t clocks = ceil_div(blocks, limits.multiprocessors) *
                             (std::min(groups, layout.busy_groups) * group_clocks + tile_clocks);
      if (clocks >= least) continue;
      least = clocks;
      plan.warps = warps;
      plan.groups_per_warp = groups_per_warp;
      plan.grid_x = ceil_div(layout.groups, groups);
    }
  return plan;
}

StreamArgs complete(StreamArgs args, const RunArguments& run, const StreamPlan& plan,
                    ValueType activations) {
  set_run(args, run);
  args.warps_per_row = plan.warps_per_row;
  args.vector_x = rows_aligned(run.x, args.in_features * bytes_of(activations), 16);
  return args;
}

PanelArgs complete(PanelArgs args, const RunArguments& run) {
  set_run(args, run);
  return args;
}

}  // namespace fanin::cuda
