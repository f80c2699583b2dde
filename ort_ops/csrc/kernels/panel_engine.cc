#include "kernels/panel_engine.h"

#include <algorithm>

#include "core/parallel.h"
#include "core/scratch.h"

namespace fanin {
namespace {

// A panel of more than this is not worth keeping: making it again, segment by segment, for the next
// pass costs no more than reading it from L3, and memory stays bounded however many inputs.
constexpr int64_t kPanelBytes = 2 * 1024 * 1024;

int64_t float_bytes(int64_t floats) { return floats * static_cast<int64_t>(sizeof(float)); }

}  // namespace

std::vector<PanelTile> make_panel_tiles(int64_t samples, int max_width, int min_width) {
  std::vector<PanelTile> tiles;
  tiles.reserve(static_cast<size_t>(samples / max_width + 1));
  for (int64_t first = 0; first < samples; first += tiles.back().samples) {
    int width = max_width;
    while (width > min_width && width / 2 >= samples - first) width /= 2;
    tiles.push_back({first, static_cast<int>(std::min<int64_t>(width, samples - first)), width});
  }
  return tiles;
}

PanelAhead panel_ahead(const float* from, int64_t stride, int64_t rows, int64_t columns,
                       int64_t summed_rows) {
  PanelAhead ahead;
  ahead.at = reinterpret_cast<const char*>(from);
  ahead.stride = float_bytes(stride);
  ahead.strips_per_line = (rows + kPanelAheadRows - 1) / kPanelAheadRows;
  ahead.strips = (float_bytes(columns) + 63) / 64 * ahead.strips_per_line;
  const int64_t groups = (summed_rows + kPanelGroupRows - 1) / kPanelGroupRows;
  ahead.strips_per_group = (ahead.strips + groups - 1) / groups;
  return ahead;
}

// Memory of one thread, or what threads share of it.
struct PanelEngine::Scratch {
  uint8_t* state;
  float* panel;
  float* sums;
};

PanelEngine::PanelEngine(const PanelLayout& layout, int max_width, int64_t sums_bytes)
    : layout_(layout) {
  const int64_t block_bytes = float_bytes(sums_rows() * max_width);
  pass_blocks_ = static_cast<size_t>(std::clamp<int64_t>(
      sums_bytes / block_bytes, 1, static_cast<int64_t>(layout_.blocks.size())));
}

void PanelEngine::run(const std::vector<PanelTile>& tiles, size_t chunks, const PanelWork& work,
                      const Executor& executor) const {
  // Threads take whole tiles while there are enough for all; the blocks of the others are split.
  const size_t whole = tiles.size() / chunks * chunks;
  if (whole > 0) run_tiles(tiles.data(), whole, chunks, work, executor);
  for (size_t t = whole; t < tiles.size(); ++t) split_tile(tiles[t], chunks, work, executor);
}

size_t PanelEngine::segment_floats(int width) const {
  return static_cast<size_t>(layout_.segment_columns + 1) * width;
}

// Rows of a block's sums, with the one that fills up groups; the first block is the largest.
int64_t PanelEngine::sums_rows() const { return layout_.blocks[0].outputs + 1; }

size_t PanelEngine::sums_floats(int width) const {
  return pass_blocks_ * static_cast<size_t>(sums_rows()) * width;
}

size_t PanelEngine::panel_floats(int width) const {
  return segment_floats(width) * static_cast<size_t>(layout_.segments);
}

bool PanelEngine::small_panel(int width) const {
  return panel_floats(width) * sizeof(float) <= static_cast<size_t>(kPanelBytes);
}

// Whether the passes over the segments share one panel; else each makes it segment by segment.
bool PanelEngine::keeps_panel(int width) const {
  return pass_blocks_ < layout_.blocks.size() && small_panel(width);
}

// Tiles on their own, each from the panel to the output on one thread.
void PanelEngine::run_tiles(const PanelTile* tiles, size_t count, size_t chunks,
                            const PanelWork& work, const Executor& executor) const {
  const int width = tiles[0].width;  // the first is the widest
  ScratchPlan plan;
  plan.add((keeps_panel(width) ? panel_floats(width) : segment_floats(width)) * sizeof(float));
  const size_t sums_at = plan.add(sums_floats(width) * sizeof(float));
  const size_t state_at = plan.add(work.state_bytes());
  uint8_t* scratch = thread_scratch(plan.total() * chunks);
  auto body = [&](size_t chunk) {
    uint8_t* mine = scratch + chunk * plan.total();
    const Scratch arrays{mine + state_at, reinterpret_cast<float*>(mine),
                         reinterpret_cast<float*>(mine + sums_at)};
    const size_t end = chunk_begin(count, chunks, chunk + 1);
    for (size_t t = chunk_begin(count, chunks, chunk); t < end; ++t) {
      work.begin(tiles[t], arrays.state);
      run_blocks(tiles[t], 0, layout_.blocks.size(),
                 keeps_panel(width) ? Panel::kToFill : Panel::kOneSegment, arrays, work);
    }
  };
  run_chunks(executor, chunks, body);
}

// One tile on all threads, which share its panel and take blocks of rows.
void PanelEngine::split_tile(const PanelTile& tile, size_t chunks, const PanelWork& work,
                             const Executor& executor) const {
  const bool share = small_panel(tile.width);
  ScratchPlan shared;
  shared.add((share ? panel_floats(tile.width) : 0) * sizeof(float));
  const size_t state_at = shared.add(work.state_bytes());
  ScratchPlan plan;
  plan.add((share ? 0 : segment_floats(tile.width)) * sizeof(float));
  const size_t sums_at = plan.add(sums_floats(tile.width) * sizeof(float));
  uint8_t* scratch = thread_scratch(shared.total() + chunks * plan.total());
  uint8_t* state = scratch + state_at;
  work.begin(tile, state);
  if (share) fill_panel(tile, state, chunks, reinterpret_cast<float*>(scratch), work, executor);
  const size_t blocks = layout_.blocks.size();
  const size_t parts = std::min(chunks, blocks);
  auto body = [&](size_t chunk) {
    uint8_t* mine = scratch + shared.total() + chunk * plan.total();
    const Scratch arrays{state, reinterpret_cast<float*>(share ? scratch : mine),
                         reinterpret_cast<float*>(mine + sums_at)};
    run_blocks(tile, chunk_begin(blocks, parts, chunk), chunk_begin(blocks, parts, chunk + 1),
               share ? Panel::kFilled : Panel::kOneSegment, arrays, work);
  };
  run_chunks(executor, parts, body);
}

void PanelEngine::fill_panel(const PanelTile& tile, const uint8_t* state, size_t chunks,
                             float* panel, const PanelWork& work, const Executor& executor) const {
  const size_t segments = static_cast<size_t>(layout_.segments);
  const size_t parts = std::min(chunks, segments);
  auto body = [&](size_t chunk) {
    const size_t end = chunk_begin(segments, parts, chunk + 1);
    for (size_t s = chunk_begin(segments, parts, chunk); s < end; ++s)
      work.fill(tile, state, static_cast<int64_t>(s), panel + s * segment_floats(tile.width));
  };
  run_chunks(executor, parts, body);
}

// Outputs of the blocks [begin, end) for a tile. Segments are outermost, so that a segment of
// the panel is still in L1 when all rows of the pass read it.
void PanelEngine::run_blocks(const PanelTile& tile, size_t begin, size_t end, Panel panel,
                             const Scratch& scratch, const PanelWork& work) const {
  for (size_t first = begin; first < end; first += pass_blocks_)
    for (int64_t segment = 0; segment < layout_.segments; ++segment) {
      float* x = scratch.panel;
      if (panel != Panel::kOneSegment) x += segment * segment_floats(tile.width);
      const bool fills = panel == Panel::kOneSegment || (panel == Panel::kToFill && first == begin);
      if (fills) work.fill(tile, scratch.state, segment, x);
      sum_blocks(tile, segment, first, std::min(end, first + pass_blocks_), x, fills, scratch.sums,
                 work);
    }
}

// Adds a segment to the sums of the blocks [first, last); after the last one they leave.
void PanelEngine::sum_blocks(const PanelTile& tile, int64_t segment, size_t first, size_t last,
                             const float* x, bool fills_next, float* sums,
                             const PanelWork& work) const {
  const bool is_last = segment + 1 == layout_.segments;
  PanelAhead ahead;
  if (fills_next && !is_last)
    ahead = work.input_ahead(tile, segment + 1,
                             static_cast<int64_t>(last - first) * layout_.blocks[0].outputs);
  for (size_t b = first; b < last; ++b, sums += sums_rows() * tile.width) {
    const PanelBlock& block = layout_.blocks[b];
    const PanelAddend addend{layout_.parts[b * layout_.segments + segment], x,
                             segment == 0 ? layout_.bias.data() + block.bias : nullptr};
    if (is_last)
      work.finish(tile, block, addend, sums);
    else
      work.add(tile, block, addend, sums, ahead);
  }
}

}  // namespace fanin
