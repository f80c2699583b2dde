#include "cuda/expand_plan.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "core/divide_up.h"

namespace fanin::cuda {
namespace {

// Warps that a multiprocessor shall have before columns are not split further: with eight, a
// prototype was fastest on an H200.
constexpr int64_t kWantedWarps = 8;
// Without clusters, the samples of all parts lie in one block's shared memory.
constexpr int kMostBlockParts = 4;
// Cycles of shared memory, which limits the kernel: to expand a tile at 90 %, and to write or read
// a sample's 256 bytes.
constexpr int64_t kExpandCycles = 56;
constexpr int64_t kSampleCycles = 2;

// `chunk_bytes(tile)`: shared memory for the samples of a part's chunk.
template <typename ChunkBytes>
int64_t shared_bytes_of(const ExpandPlan& plan, const ChunkBytes& chunk_bytes) {
  return expand_shared_bytes(plan.tile, plan.warps, plan.parts / plan.cluster, plan.stages,
                             chunk_bytes(plan.tile));
}

// Splits the columns until there are enough tiles for the warps, as far as a block's memory holds
// the plan's tile of samples; `turns` is how often each tile of rows is expanded.
template <typename ChunkBytes>
void split_columns(ExpandPlan& plan, const ExpandLayout& layout, int64_t turns,
                   const ChunkBytes& chunk_bytes, const DeviceLimits& limits) {
  const bool clusters = limits.cluster > 1;
  const int64_t most =
      std::min<int64_t>(clusters ? ExpandShape::kMaxParts : kMostBlockParts, layout.chunks);
  while (2 * plan.parts <= most &&
         layout.tiles() * turns * plan.parts < kWantedWarps * limits.multiprocessors)
    plan.parts *= 2;
  while (2 * plan.cluster <= std::min<int64_t>(plan.parts, limits.cluster)) plan.cluster *= 2;
  while (plan.parts > plan.cluster &&
         shared_bytes_of(plan, chunk_bytes) > limits.shared_bytes_per_block)
    plan.parts /= 2;
}

// Completes a plan with a number of warps: stages, grid, shared memory. False if it does not fit.
template <typename ChunkBytes>
bool fit_blocks(ExpandPlan& plan, const ExpandLayout& layout, int warps,
                const ChunkBytes& chunk_bytes, const DeviceLimits& limits) {
  plan.warps = warps;
  plan.stages = ExpandShape::kLeastStages;
  if (plan.parts / plan.cluster > warps) return false;
  if (shared_bytes_of(plan, chunk_bytes) > limits.shared_bytes_per_block) return false;
  // More stages as long as a multiprocessor holds two blocks, or no fewer than before.
  const auto resident = [&] {
    return std::min<int64_t>(
        limits.shared_bytes_per_multiprocessor / (shared_bytes_of(plan, chunk_bytes) + kReserved),
        limits.threads_per_multiprocessor / (32 * warps));
  };
  const int64_t wanted = std::min<int64_t>(2, resident());
  for (int stages = ExpandShape::kMostStages; stages > ExpandShape::kLeastStages; --stages) {
    plan.stages = stages;
    if (shared_bytes_of(plan, chunk_bytes) <= limits.shared_bytes_per_block && resident() >= wanted)
      break;
    plan.stages = ExpandShape::kLeastStages;
  }
  const int64_t rows = warps / (plan.parts / plan.cluster) * expand_warp_tiles(plan.tile);
  plan.grid_x = divide_up(layout.group_tiles, rows) * layout.groups * plan.cluster;
  plan.shared_bytes = shared_bytes_of(plan, chunk_bytes);
  return true;
}

// The dispatch keeps such layers away. A launch without its shared memory would read out of bounds.
void refuse_unfit(const ExpandPlan& plan, const DeviceLimits& limits) {
  if (plan.shared_bytes > 0) return;
  throw std::length_error("no block of the expand kernel fits into the GPU's " +
                          std::to_string(limits.shared_bytes_per_block) +
                          " bytes of shared memory: take the stream or panel kernel");
}

}  // namespace

ExpandPlan plan_expand(const ExpandLayout& layout, const RunArguments& run,
                       const DeviceLimits& limits) {
  ExpandPlan plan;
  plan.vector_x = rows_aligned(
      run.x, layout.in_features * static_cast<int64_t>(value_bytes(layout.activations)), 16);
  const auto chunk_bytes = [](int64_t tile) { return tile * ExpandShape::kChunkBytes; };
  split_columns(plan, layout, 1, chunk_bytes, limits);

  // The fewest samples that hold the batch, or the most that fit.
  for (const int tile : kExpandTiles) {
    ExpandPlan larger = plan;
    larger.tile = tile;
    if (tile > 8 && (plan.tile >= run.batch ||
                     shared_bytes_of(larger, chunk_bytes) > limits.shared_bytes_per_block))
      break;
    plan = larger;
  }
  plan.grid_y = std::min(kMaxGridY, divide_up(run.batch, plan.tile));

  int64_t least = std::numeric_limits<int64_t>::max();
  ExpandPlan best = plan;
  for (const int warps : {8, 4}) {  // in doubt the larger block, which reads x less often
    if (!fit_blocks(plan, layout, warps, chunk_bytes, limits)) continue;
    // Tiles that the busiest multiprocessor expands for each chunk.
    const int64_t rows = warps / (plan.parts / plan.cluster) * expand_warp_tiles(plan.tile);
    const int64_t busy = divide_up(plan.grid_x * plan.grid_y, limits.multiprocessors) * rows;
    if (busy >= least) continue;
    least = busy;
    best = plan;
  }
  refuse_unfit(best, limits);
  return best;
}

ExpandPlan plan_expand_conv(const ExpandConvLayout& layout, const RunArguments& run,
                            const ConvInput& input, const DeviceLimits& limits) {
  const ConvGeometry& geometry = layout.geometry;
  const std::string problem = expand_input_problem(geometry, input);
  if (!problem.empty()) throw std::length_error(problem);
  const auto bytes = static_cast<int64_t>(value_bytes(layout.tiles.activations));
  const int64_t image =
      geometry.output_size(0, input.height) * geometry.output_size(1, input.width);
  const int64_t pixels = input.batch * image;
  const auto chunk_bytes = [&](int64_t tile) { return pixel_chunk_bytes(tile, bytes); };
  ExpandPlan plan;
  plan.vector_x = geometry.is_pointwise() && rows_aligned(run.x, image * bytes, 16);
  plan.tile = kPixelTiles[0];
  split_columns(plan, layout.tiles, divide_up(image, 64), chunk_bytes, limits);

  int64_t least = std::numeric_limits<int64_t>::max();
  ExpandPlan best = plan;
  for (const int tile : kPixelTiles)
    for (const int warps : {8, 4}) {
      plan.tile = tile;
      if (!fit_blocks(plan, layout.tiles, warps, chunk_bytes, limits)) continue;
      const int64_t turns = divide_up(pixels, tile);
      plan.grid_y = std::min(kMaxGridY, turns);
      // Of the busiest multiprocessor for each chunk: a block writes the samples, and those of its
      // warps that have tiles expand them and read the samples.
      const int64_t block_parts = plan.parts / plan.cluster, warp_tiles = expand_warp_tiles(tile);
      const int64_t busy_warps =
          block_parts *
          std::min(warps / block_parts, divide_up(layout.tiles.group_tiles, warp_tiles));
      const int64_t busy = divide_up(plan.grid_x * turns, limits.multiprocessors) *
                           (busy_warps * (warp_tiles * kExpandCycles + tile * kSampleCycles) +
                            block_parts * tile * kSampleCycles);
      if (busy >= least) continue;
      least = busy;
      best = plan;
    }
  refuse_unfit(best, limits);
  return best;
}

std::string expand_input_problem(const ConvGeometry& geometry, const ConvInput& input) {
  const int64_t pixels =
      geometry.output_size(0, input.height) * geometry.output_size(1, input.width);
  const auto longest = std::max(input.height, input.width);
  if (longest <= kMostExpandPixels &&
      (input.batch == 0 || pixels <= std::numeric_limits<int32_t>::max() / input.batch))
    return "";
  return "the expand kernel takes images of up to " + std::to_string(kMostExpandPixels) +
         " pixels along an axis and outputs of up to 2147483647 pixels, these are " +
         std::to_string(input.batch) + " images of " + std::to_string(input.height) + " x " +
         std::to_string(input.width) + ": run fewer at a time";
}

ExpandArgs complete(ExpandArgs args, const RunArguments& run, const ExpandPlan& plan) {
  set_run(args, run);
  args.parts = plan.parts;
  args.cluster = plan.cluster;
  args.stages = plan.stages;
  return args;
}

ExpandConvArgs complete(ExpandConvArgs args, const RunArguments& run, const ConvInput& input,
                        const ConvGeometry& geometry, const ExpandPlan& plan) {
  static_cast<ExpandArgs&>(args) = complete(static_cast<const ExpandArgs&>(args), run, plan);
  args.height = static_cast<int32_t>(input.height);
  args.width = static_cast<int32_t>(input.width);
  args.out_width = static_cast<int32_t>(geometry.output_size(1, input.width));
  args.out_pixels = static_cast<int32_t>(geometry.output_size(0, input.height)) * args.out_width;
  args.batch = input.batch * args.out_pixels;
  args.gated = !run.gate.open();
  args.gate_scale = run.gate.scale;
  args.gate_shift = run.gate.shift;
  return args;
}

}  // namespace fanin::cuda
