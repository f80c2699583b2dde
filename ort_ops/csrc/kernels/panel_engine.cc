#include "kernels/panel_engine.h"

#include <algorithm>

#include "core/parallel.h"
#include "core/scratch.h"

namespace fanin {
namespace {

// A panel of more than this is not worth keeping: making it again, segment by segment, for the next
// pass costs no more than reading it from L3, and memory stays bounded however many inputs.
constexpr int64_t kPanelBytes = 2 * 1024 * 1024;

// Rows of a part load and store their sums once, counted as this many multiply-adds (an
// estimate).
constexpr double kRowVisit = 3.0;

int64_t float_bytes(int64_t floats) { return floats * static_cast<int64_t>(sizeof(float)); }

size_t segment_floats(const PanelLayout& layout, int width) {
  return static_cast<size_t>(layout.segment_columns + 1) * column_floats(layout.entry, width);
}

size_t panel_floats(const PanelLayout& layout, int width) {
  return segment_floats(layout, width) * static_cast<size_t>(layout.segments);
}

bool small_panel(const PanelLayout& layout, int width) {
  return panel_floats(layout, width) * sizeof(float) <= static_cast<size_t>(kPanelBytes);
}

// Rows of a block's sums, with the one that fills up groups.
size_t sums_rows(const PanelLayout& layout) { return static_cast<size_t>(layout.block_rows) + 1; }

// Memory of one thread.
struct Scratch {
  uint8_t* state;
  float* panel;
  float* sums;
};

// Blocks of one tile in one job.
struct Piece {
  const PanelJob& job;
  PanelTile tile;
  size_t first_block;
  size_t end_block;
};

class Runner {
 public:
  Runner(const PanelJob* jobs, size_t count, const PanelTiles& tiles, const WorkPlan& plan)
      : jobs_(jobs), tiles_(tiles), plan_(plan) {
    const int width = tiles.widest();
    size_t panel = 0, sums = 0, state = 0;
    for (size_t j = 0; j < count; ++j) {
      const PanelLayout& layout = jobs[j].engine->layout();
      const size_t pass = jobs[j].engine->pass_blocks();
      const bool keeps = pass < layout.blocks.size() && small_panel(layout, width);
      panel = std::max(panel, keeps ? panel_floats(layout, width) : segment_floats(layout, width));
      sums = std::max(sums, pass * sums_rows(layout) * static_cast<size_t>(width));
      state = std::max(state, jobs[j].work->state_bytes());
    }
    ScratchPlan own;
    own.add(panel * sizeof(float));
    sums_at_ = own.add(sums * sizeof(float));
    state_at_ = own.add(state);
    own_bytes_ = own.total();
  }

  void run(const Executor& executor) {
    scratch_ = thread_scratch(own_bytes_ * plan_.threads);
    auto body = [this](size_t part, size_t thread, bool) {
      run_part(plan_.begins[part], plan_.begins[part + 1], thread);
    };
    run_plan(executor, plan_, body);
  }

 private:
  // Where a unit lies.
  struct Place {
    size_t job;
    int64_t tile;
    int64_t block;
    int64_t blocks;  // of the job
  };

  Place place(int64_t unit) const {
    for (size_t j = 0;; ++j) {
      const auto blocks = static_cast<int64_t>(jobs_[j].engine->layout().blocks.size());
      const int64_t units = blocks * tiles_.count();
      if (unit < units) return {j, unit / blocks, unit % blocks, blocks};
      unit -= units;
    }
  }

  void run_part(int64_t begin, int64_t end, size_t thread) const {
    uint8_t* mine = scratch_ + thread * own_bytes_;
    const Scratch own{mine + state_at_, reinterpret_cast<float*>(mine),
                      reinterpret_cast<float*>(mine + sums_at_)};
    while (begin < end) {
      const Place at = place(begin);
      const int64_t blocks = std::min(end - begin, at.blocks - at.block);
      run_piece({jobs_[at.job], tiles_[at.tile], static_cast<size_t>(at.block),
                 static_cast<size_t>(at.block + blocks)},
                own);
      begin += blocks;
    }
  }

  // Segments are outermost, so that a segment of the panel is still in L1 when all rows of the pass
  // read it.
  static void run_piece(const Piece& piece, const Scratch& own) {
    const PanelEngine& engine = *piece.job.engine;
    const PanelLayout& layout = engine.layout();
    const PanelWork& work = *piece.job.work;
    work.begin(piece.tile, own.state);
    const size_t segment_size = segment_floats(layout, piece.tile.width);
    // Passes share a small panel; else each makes it anew, segment by segment.
    const bool keeps = piece.end_block - piece.first_block > engine.pass_blocks() &&
                       small_panel(layout, piece.tile.width);
    for (size_t first = piece.first_block; first < piece.end_block; first += engine.pass_blocks())
      for (int64_t segment = 0; segment < layout.segments; ++segment) {
        const bool fills = !keeps || first == piece.first_block;
        float* x = own.panel + (keeps ? static_cast<size_t>(segment) * segment_size : 0);
        if (fills) work.fill(piece.tile, own.state, segment, x);
        sum_blocks(piece, segment, first, std::min(piece.end_block, first + engine.pass_blocks()),
                   x, fills, own.sums);
      }
  }

  // Adds a segment to the sums of the blocks [first, last); after the last one they leave.
  static void sum_blocks(const Piece& piece, int64_t segment, size_t first, size_t last,
                         const float* x, bool fills_next, float* sums) {
    const PanelLayout& layout = piece.job.engine->layout();
    const PanelWork& work = *piece.job.work;
    const bool is_last = segment + 1 == layout.segments;
    PanelAhead ahead;
    if (fills_next && !is_last)
      ahead = work.input_ahead(piece.tile, segment + 1,
                               static_cast<int64_t>(last - first) * layout.block_rows);
    for (size_t b = first; b < last;
         ++b, sums += sums_rows(layout) * static_cast<size_t>(piece.tile.width)) {
      const PanelBlock& block = layout.blocks[b];
      const PanelAddend addend{
          layout.parts[b * static_cast<size_t>(layout.segments) + static_cast<size_t>(segment)], x,
          segment == 0 ? layout.bias.data() + block.bias : nullptr};
      if (is_last)
        work.finish(piece.tile, block, addend, sums);
      else
        work.add(piece.tile, block, addend, sums, ahead);
    }
  }

  const PanelJob* jobs_;
  const PanelTiles& tiles_;
  const WorkPlan& plan_;
  size_t own_bytes_ = 0, sums_at_ = 0, state_at_ = 0;
  uint8_t* scratch_ = nullptr;
};

}  // namespace

PanelTiles make_panel_tiles(int64_t samples, int max_width, int min_width) {
  PanelTiles tiles{samples / max_width, max_width, {}};
  const int left = static_cast<int>(samples % max_width);
  if (left == 0) return tiles;
  int width = max_width;
  while (width > min_width && width / 2 >= left) width /= 2;
  tiles.tails.push_back({samples - left, left, width});
  return tiles;
}

PanelAhead panel_ahead(const void* from, int64_t stride, int64_t rows, int64_t bytes,
                       int64_t summed_rows) {
  PanelAhead ahead;
  ahead.at = static_cast<const char*>(from);
  ahead.stride = stride;
  ahead.strips_per_line = (rows + kPanelAheadRows - 1) / kPanelAheadRows;
  ahead.strips = (bytes + 63) / 64 * ahead.strips_per_line;
  const int64_t groups = (summed_rows + kPanelGroupRows - 1) / kPanelGroupRows;
  ahead.strips_per_group = (ahead.strips + groups - 1) / groups;
  return ahead;
}

PanelEngine::PanelEngine(const PanelLayout& layout, int max_width, int64_t sums_bytes)
    : layout_(layout) {
  const int64_t block_bytes = float_bytes(static_cast<int64_t>(sums_rows(layout)) * max_width);
  pass_blocks_ = static_cast<size_t>(std::clamp<int64_t>(
      sums_bytes / block_bytes, 1, static_cast<int64_t>(layout_.blocks.size())));
}

WorkGrid PanelEngine::grid(const PanelTiles& tiles, int widest, const PanelRates& rates,
                           int64_t columns) const {
  // Narrow tiles share the load of a weight among fewer samples.
  const auto relative = [](int width, int full) {
    return 0.25 + 0.75 * static_cast<double>(width) / full;
  };
  const int width = tiles.full_width;
  const double weight = rates.weight * widest * relative(width, widest);
  std::vector<double> blocks;
  std::vector<WorkTail> tails;
  for (const PanelBlock& block : layout_.blocks)
    blocks.push_back(block.multiplications(kRowVisit) * weight);
  for (const PanelTile& tail : tiles.tails)
    tails.push_back({relative(tail.width, widest) / relative(width, widest),
                     static_cast<double>(tail.width) / width});
  return {tiles.full, std::move(tails), blocks,
          static_cast<double>(columns * width) * rates.column};
}

WorkPlan PanelEngine::plan(int64_t samples, int max_width, int min_width, const PanelRates& rates,
                           int64_t columns, size_t threads, const DispatchCost& dispatch) const {
  WorkPlan best;
  for (int width = max_width; width >= min_width; width /= 2) {
    const PanelTiles tiles = make_panel_tiles(samples, width, min_width);
    WorkPlan plan = plan_work({grid(tiles, max_width, rates, columns)}, threads, dispatch);
    plan.tile_width = width;
    if (best.tile_width == 0 || plan.time() < best.time()) best = std::move(plan);
    if (threads == 1) break;
  }
  return best;
}

void run_panels(const PanelJob* jobs, size_t count, const PanelTiles& tiles, const WorkPlan& plan,
                const Executor& executor) {
  Runner(jobs, count, tiles, plan).run(executor);
}

}  // namespace fanin
