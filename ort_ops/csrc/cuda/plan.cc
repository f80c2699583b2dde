#include "cuda/plan.h"

#include <algorithm>
#include <limits>

#include "core/divide_up.h"

namespace fanin::cuda {
namespace {

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

// Measured for the panel on an H200. The most columns of a part: with more, there are too few
// blocks.
constexpr int64_t kMostColumns = 1024;
// Clocks of a multiprocessor for a unit, and for staging a column of x; clocks of a single warp for
// a unit, and of a block for its start and end.
constexpr int kUnitClocks = 58;
constexpr int kStagingClocks = 10;
constexpr int kUnitLatency = 560;
constexpr int kBlockLatency = 2500;
// As many as the registers hold.
constexpr int64_t kPanelThreads = 512;

// Warps of the expand kernel that a multiprocessor shall have before columns are not split further:
// with eight, a prototype was fastest on an H200.
constexpr int64_t kExpandWarps = 8;
// Without clusters, the samples of all parts lie in one block's shared memory.
constexpr int kMostBlockParts = 4;

int64_t expand_bytes(const ExpandPlan& plan) {
  return expand_shared_bytes(plan.tile, plan.warps, plan.parts / plan.cluster, plan.stages);
}

}  // namespace

bool rows_aligned(const void* x, int64_t row_bytes, int64_t alignment) {
  return reinterpret_cast<uintptr_t>(x) % static_cast<uintptr_t>(alignment) == 0 &&
         row_bytes % alignment == 0;
}

int64_t stageable_samples(int64_t in_features, ValueType activations, const DeviceLimits& limits) {
  if (in_features > kMaxColumns16) return 0;
  // Besides x there may be a sum for each of 16 warps.
  for (int64_t samples = 8; samples > 0; samples /= 2)
    if (stream_shared_bytes(in_features, bytes_of(activations), samples, true, 16, 2) <=
        limits.shared_bytes_per_block)
      return samples;
  return 0;
}

StreamPlan plan_stream(const StreamLayout& layout, int64_t batch, ValueType activations,
                       const DeviceLimits& limits) {
  StreamPlan plan;
  const int64_t most = stageable_samples(layout.in_features, activations, limits);
  plan.staged = most > 0;
  while (plan.samples < std::min(batch, most)) plan.samples *= 2;
  plan.grid_y = std::min(kMaxGridY, divide_up(batch, plan.samples));

  // More warps share a row until every multiprocessor has eight warps.
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
    const int64_t blocks = divide_up(layout.out_features, rows);
    // Bytes that the busiest multiprocessor reads: its rows, and x once for each resident block.
    const int64_t turns = divide_up(blocks, limits.multiprocessors);
    const int64_t bytes = turns * rows * row_bytes + std::min(turns, resident) * shared;
    if (bytes >= least) continue;
    least = bytes;
    plan.warps = warps;
    plan.shared_bytes = shared;
    plan.grid_x = std::min(blocks, resident * limits.multiprocessors);
  }
  return plan;
}

PanelCut panel_cut(int64_t in_features, const DeviceLimits& limits) {
  // About a third of the memory is for sums.
  const int64_t most = std::min<int64_t>(kMostColumns, limits.shared_bytes_per_block * 65 / 100 /
                                                           PanelShape::kStride) /
                       PanelShape::kPieceColumns * PanelShape::kPieceColumns;
  PanelCut cut;
  const int64_t parts = divide_up(in_features, most);
  const int64_t rounds = divide_up(parts, limits.cluster);
  cut.cluster = divide_up(parts, rounds);
  cut.parts = rounds * cut.cluster;
  cut.columns = divide_up(divide_up(in_features, cut.parts), PanelShape::kPieceColumns) *
                PanelShape::kPieceColumns;
  return cut;
}

PanelPlan plan_panel(const PanelLayout& layout, const RunArguments& run, ValueType activations,
                     const DeviceLimits& limits) {
  PanelPlan plan;
  const int64_t size = bytes_of(activations);
  plan.vector_x = rows_aligned(run.x, layout.in_features * size, 4 * size);
  const int64_t tile = PanelShape::kColumnBytes / size;
  const int64_t tiles = divide_up(run.batch, tile);
  plan.grid_y = std::min(kMaxGridY, tiles);
  const PanelCut& cut = layout.cut;
  const int64_t rounds = cut.parts / cut.cluster;
  // A cluster cannot span groups of multiprocessors, so some multiprocessors get none.
  const int64_t multiprocessors =
      std::max<int64_t>(1, limits.multiprocessors * (cut.cluster > 1 ? 7 : 8) / 8);
  const double band_units =
      static_cast<double>(layout.units) / static_cast<double>(layout.bands * cut.parts);
  double least = std::numeric_limits<double>::infinity();
  for (int64_t bands = 1; bands <= layout.bands; ++bands) {
    const int64_t shared = panel_shared_bytes(cut.columns, bands * PanelShape::kBandRows, tile);
    if (shared > limits.shared_bytes_per_block) break;
    const int64_t fits = limits.shared_bytes_per_multiprocessor / (shared + kReserved);
    const int64_t blocks = divide_up(layout.bands, bands) * cut.cluster * tiles;
    const int64_t turns = divide_up(blocks, multiprocessors);  // of a multiprocessor
    for (int warps : {8, 16}) {
      const int64_t waves =
          divide_up(turns, std::clamp<int64_t>(fits, 1, kPanelThreads / (32 * warps)));
      const double staging = static_cast<double>(rounds * (cut.columns * kStagingClocks)) +
                             static_cast<double>(kBlockLatency);
      const double unit_count = static_cast<double>(bands * rounds) * band_units;
      const double busy = static_cast<double>(turns) * unit_count * kUnitClocks;
      const double share = static_cast<double>(divide_up(bands * PanelShape::kBandGroups, warps)) /
                           static_cast<double>(bands * PanelShape::kBandGroups);
      const double waiting = static_cast<double>(waves) * unit_count * share * kUnitLatency;
      const double clocks = std::max(busy, waiting) + static_cast<double>(turns) * staging;
      if (clocks >= least) continue;
      least = clocks;
      plan.warps = warps;
      plan.bands_per_block = static_cast<int>(bands);
      plan.shared_bytes = shared;
      plan.grid_x = divide_up(layout.bands, bands) * cut.cluster;
    }
  }
  return plan;
}

ExpandPlan plan_expand(const ExpandLayout& layout, const RunArguments& run,
                       const DeviceLimits& limits) {
  ExpandPlan plan;
  plan.vector_x = rows_aligned(run.x, layout.in_features * 2, 16);
  const bool clusters = limits.cluster > 1;
  const int64_t most =
      std::min<int64_t>(clusters ? ExpandShape::kMaxParts : kMostBlockParts, layout.chunks);
  while (2 * plan.parts <= most &&
         layout.tiles * plan.parts < kExpandWarps * limits.multiprocessors)
    plan.parts *= 2;
  while (2 * plan.cluster <= std::min<int64_t>(plan.parts, limits.cluster)) plan.cluster *= 2;

  // The fewest samples that hold the batch, or the most that fit.
  for (const int tile : kExpandTiles) {
    ExpandPlan larger = plan;
    larger.tile = tile;
    if (tile > 8 &&
        (plan.tile >= run.batch || expand_bytes(larger) > limits.shared_bytes_per_block))
      break;
    plan = larger;
  }
  plan.grid_y = std::min(kMaxGridY, divide_up(run.batch, plan.tile));

  const int64_t warp_tiles = expand_warp_tiles(plan.tile);
  double least = std::numeric_limits<double>::infinity();
  ExpandPlan best = plan;
  for (const int warps : {8, 4}) {  // in doubt the larger block, which reads x less often
    plan.warps = warps;
    if (plan.parts / plan.cluster > warps) continue;
    plan.stages = ExpandShape::kLeastStages;
    if (expand_bytes(plan) > limits.shared_bytes_per_block) continue;
    // More stages as long as a multiprocessor holds two blocks, or no fewer than before.
    const auto resident = [&] {
      return std::min<int64_t>(
          limits.shared_bytes_per_multiprocessor / (expand_bytes(plan) + kReserved),
          limits.threads_per_multiprocessor / (32 * warps));
    };
    const int64_t wanted = std::min<int64_t>(2, resident());
    for (int stages = ExpandShape::kMostStages; stages > ExpandShape::kLeastStages; --stages) {
      plan.stages = stages;
      if (expand_bytes(plan) <= limits.shared_bytes_per_block && resident() >= wanted) break;
      plan.stages = ExpandShape::kLeastStages;
    }
    const int64_t rows = warps / (plan.parts / plan.cluster) * warp_tiles;
    plan.grid_x = divide_up(layout.tiles, rows) * plan.cluster;
    plan.shared_bytes = expand_bytes(plan);
    // Tiles that the busiest multiprocessor expands for each chunk.
    const int64_t turns = divide_up(plan.grid_x * plan.grid_y, limits.multiprocessors);
    const double busy = static_cast<double>(turns * rows);
    if (busy >= least) continue;
    least = busy;
    best = plan;
  }
  return best;
}

StreamArgs complete(StreamArgs args, const RunArguments& run, const StreamPlan& plan,
                    ValueType activations) {
  set_run(args, run);
  args.warps_per_row = plan.warps_per_row;
  args.vector_x = rows_aligned(run.x, args.in_features * bytes_of(activations), 16);
  return args;
}

PanelArgs complete(PanelArgs args, const RunArguments& run, const PanelPlan& plan) {
  set_run(args, run);
  args.bands_per_block = plan.bands_per_block;
  return args;
}

ExpandArgs complete(ExpandArgs args, const RunArguments& run, const ExpandPlan& plan) {
  set_run(args, run);
  args.parts = plan.parts;
  args.cluster = plan.cluster;
  args.stages = plan.stages;
  return args;
}

}  // namespace fanin::cuda
