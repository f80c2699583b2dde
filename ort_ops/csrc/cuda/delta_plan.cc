#include "cuda/delta_plan.h"

#include <algorithm>
#include <limits>

#include "core/divide_up.h"

namespace fanin::cuda {
namespace {

// Of an H200 by its data sheet, none of them measured with this kernel: bytes of memory for each
// clock of a multiprocessor; clocks of a load, of the end of a tile, and of one more chain in it.
constexpr double kBytesPerClock = 18;
constexpr int64_t kLoadClocks = 1200;
constexpr int64_t kTileClocks = 500;
constexpr int64_t kPartClocks = 8;
// Bytes that a multiprocessor has to have in flight for them, 700 ns long.
constexpr double kLatencyBytes = 22 << 10;
// Chunks of a chain in flight, see DeltaKernel::kAhead.
constexpr int64_t kAhead = 4;
// Of a block, so that staging x takes few rounds.
constexpr int64_t kLeastWarps = 14;

int64_t bytes_of(ValueType type) { return static_cast<int64_t>(value_bytes(type)); }

}  // namespace

int64_t delta_samples(int64_t in_features, ValueType activations, const DeviceLimits& limits) {
  if (in_features > kMaxColumns16) return 0;
  for (int64_t samples = 4; samples > 0; samples /= 2)
    if (delta_shared_bytes(in_features, bytes_of(activations), samples, kDeltaThreads, 1) <=
        limits.shared_bytes_per_block)
      return samples;
  return 0;
}

DeltaCut delta_cut(const CondensedView& view, const DeviceLimits& limits) {
  const int64_t entries = delta_entries(bytes_of(view.value_type));
  const int64_t active = std::max<int64_t>(1, view.active);
  const int64_t fan_in = std::max<int64_t>(1, longest_row(view));
  // Tiles of each multiprocessor: as few as there are threads for, or a few more.
  const int64_t fewest = divide_up(active, limits.multiprocessors * kDeltaThreads);
  DeltaCut best;
  double least = std::numeric_limits<double>::infinity();
  for (int64_t turns = fewest; turns < fewest + 4; ++turns) {
    const int64_t rows = divide_up(active, limits.multiprocessors * turns);
    for (int64_t parts = 1; rows * parts <= kDeltaThreads && parts <= fan_in; ++parts) {
      const int64_t steps = divide_up(divide_up(fan_in, parts), entries);
      const int64_t step_bytes = rows * parts * (16 + entries);
      const double bytes = static_cast<double>(turns * steps * step_bytes);
      const auto in_flight = static_cast<double>(std::min(steps, kAhead) * step_bytes);
      const auto waits = static_cast<double>(turns * divide_up(steps, kAhead) * kLoadClocks);
      // Threads do not ask for memory evenly, so that more in flight is better, but less and less.
      const double memory = bytes / kBytesPerClock * (1 + kLatencyBytes / 4 / in_flight);
      const double clocks = std::max(memory, waits) +
                            static_cast<double>(turns * (kTileClocks + parts * kPartClocks));
      if (clocks >= least) continue;
      least = clocks;
      best = {rows, parts};
    }
  }
  return best;
}

DeltaPlan plan_delta(const DeltaLayout& layout, const RunArguments& run, ValueType activations,
                     const DeviceLimits& limits) {
  DeltaPlan plan;
  const int64_t most = delta_samples(layout.in_features, activations, limits);
  while (plan.samples < std::min(run.batch, most)) plan.samples *= 2;
  plan.grid_y = std::min(kMaxGridY, divide_up(run.batch, plan.samples));
  const int64_t chains = layout.cut.rows * layout.cut.parts;
  plan.warps = static_cast<int>(std::max(kLeastWarps, divide_up(chains, 32)));
  plan.shared_bytes = delta_shared_bytes(layout.in_features, bytes_of(activations), plan.samples,
                                         layout.cut.rows, layout.cut.parts);
  plan.vector_x =
      rows_aligned(run.x, layout.in_features * bytes_of(activations), 16 / plan.samples);
  // As many blocks as there is room for at a time; they take the tiles in turn.
  const int64_t resident = std::max<int64_t>(
      1, std::min(limits.shared_bytes_per_multiprocessor / (plan.shared_bytes + kReserved),
                  int64_t{kDeltaThreads} / (32 * plan.warps)));
  plan.grid_x = std::clamp<int64_t>(layout.tile_count, 1, resident * limits.multiprocessors);
  return plan;
}

DeltaArgs complete(DeltaArgs args, const RunArguments& run, const DeltaPlan& plan) {
  args.x = run.x;
  args.residual = run.residual;
  args.y = run.y;
  args.batch = run.batch;
  args.clip_min = run.clip_min;
  args.clip_max = run.clip_max;
  args.vector_x = plan.vector_x;
  return args;
}

}  // namespace fanin::cuda
