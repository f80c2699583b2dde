#include "kernels/panel_engine.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <thread>

#include "core/parallel.h"
#include "core/scratch.h"

namespace fanin {
namespace {

// A panel of more than this is not worth keeping: making it again, segment by segment, for the next
// pass costs no more than reading it from L3, and memory stays bounded however many inputs.
constexpr int64_t kPanelBytes = 2 * 1024 * 1024;

// Parts of one tile from which on threads share its panel. Two fill it each for itself, where it
// stays in their L1: that takes 3 % of a tile's time at 3072 x 768 and 90 % sparsity.
constexpr size_t kSharingParts = 3;

// Rows of a part load and store their sums once, which takes as long as this many multiply-adds.
constexpr double kRowVisit = 3.0;

int64_t float_bytes(int64_t floats) { return floats * static_cast<int64_t>(sizeof(float)); }

size_t segment_floats(const PanelLayout& layout, int width) {
  return static_cast<size_t>(layout.segment_columns + 1) * static_cast<size_t>(width);
}

size_t panel_floats(const PanelLayout& layout, int width) {
  return segment_floats(layout, width) * static_cast<size_t>(layout.segments);
}

bool small_panel(const PanelLayout& layout, int width) {
  return panel_floats(layout, width) * sizeof(float) <= static_cast<size_t>(kPanelBytes);
}

// Rows of a block's sums, with the one that fills up groups.
size_t sums_rows(const PanelLayout& layout) { return static_cast<size_t>(layout.block_rows) + 1; }

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A panel that several threads fill and read. Each fills the next segment that nobody has begun
// until there is none left, and waits only for segments that a running thread is filling: so none
// waits for ever, however few of the threads run at a time.
class SharedPanel {
 public:
  static size_t bytes(const PanelLayout& layout, int width) {
    ScratchPlan plan = begin(layout);
    plan.add(panel_floats(layout, width) * sizeof(float));
    return plan.total();
  }

  // In memory of bytes() that no thread uses yet.
  SharedPanel(uint8_t* memory, const PanelLayout& layout, int width)
      : next_(new (memory) std::atomic<int64_t>(0)),
        ready_(reinterpret_cast<std::atomic<bool>*>(memory + kLine)),
        panel_(reinterpret_cast<float*>(memory + begin(layout).total())),
        segments_(layout.segments),
        segment_floats_(segment_floats(layout, width)) {
    for (int64_t s = 0; s < segments_; ++s) new (ready_ + s) std::atomic<bool>(false);
  }

  float* segment(int64_t s) const { return panel_ + static_cast<size_t>(s) * segment_floats_; }

  void fill(const PanelTile& tile, const uint8_t* state, const PanelWork& work) const {
    for (int64_t s = next_->fetch_add(1, std::memory_order_relaxed); s < segments_;
         s = next_->fetch_add(1, std::memory_order_relaxed)) {
      work.fill(tile, state, s, segment(s));
      ready_[s].store(true, std::memory_order_release);
    }
  }

  void wait_for(int64_t s) const {
    constexpr int kSpins = 2000;  // some ten microseconds, longer than a segment takes
    for (int i = 0; !ready_[s].load(std::memory_order_acquire); ++i) {
      if (i < kSpins)
        pause();
      else
        std::this_thread::yield();
    }
  }

 private:
  static constexpr size_t kLine = 64;

  static ScratchPlan begin(const PanelLayout& layout) {
    ScratchPlan plan;
    plan.add(kLine);
    plan.add(static_cast<size_t>(layout.segments) * sizeof(std::atomic<bool>));
    return plan;
  }

  std::atomic<int64_t>* next_;
  std::atomic<bool>* ready_;
  float* panel_;
  int64_t segments_;
  size_t segment_floats_;
};

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
      : jobs_(jobs), count_(count), tiles_(tiles), plan_(plan) {
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
    find_shared_tiles();
  }

  void run(const Executor& executor) {
    scratch_ = thread_scratch(shared_bytes_ + own_bytes_ * plan_.threads);
    panels_.reserve(shared_.size());
    for (const SharedTile& tile : shared_)
      panels_.emplace_back(scratch_ + tile.at, tile.layout, tile.width);
    auto body = [this](size_t part, size_t thread, bool) {
      run_part(plan_.begins[part], plan_.begins[part + 1], thread);
    };
    run_plan(executor, plan_, body);
  }

 private:
  struct SharedTile {
    int64_t first_unit;
    const PanelLayout& layout;
    int width;
    size_t at;  // in the scratch
  };

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

  // Tiles that are cut into many parts have one panel for all of them.
  void find_shared_tiles() {
    const std::vector<int64_t>& begins = plan_.begins;
    for (size_t p = 1; p + 1 < begins.size();) {
      if (begins[p] == begins.back()) return;
      const Place at = place(begins[p]);
      const int64_t first = begins[p] - at.block, end = first + at.blocks;
      size_t cuts = 0;
      for (; p + 1 < begins.size() && begins[p] < end; ++p)
        cuts += begins[p] != first && begins[p] != begins[p - 1];
      const PanelLayout& layout = jobs_[at.job].engine->layout();
      const int width = tiles_[at.tile].width;
      if (cuts + 1 < kSharingParts || !small_panel(layout, width)) continue;
      shared_.push_back({first, layout, width, shared_bytes_});
      shared_bytes_ += SharedPanel::bytes(layout, width);
    }
  }

  const SharedPanel* panel_of(int64_t first_unit) const {
    for (size_t i = 0; i < shared_.size(); ++i)
      if (shared_[i].first_unit == first_unit) return &panels_[i];
    return nullptr;
  }

  void run_part(int64_t begin, int64_t end, size_t thread) const {
    uint8_t* mine = scratch_ + shared_bytes_ + thread * own_bytes_;
    const Scratch own{mine + state_at_, reinterpret_cast<float*>(mine),
                      reinterpret_cast<float*>(mine + sums_at_)};
    while (begin < end) {
      const Place at = place(begin);
      const int64_t blocks = std::min(end - begin, at.blocks - at.block);
      run_piece({jobs_[at.job], tiles_[at.tile], static_cast<size_t>(at.block),
                 static_cast<size_t>(at.block + blocks)},
                panel_of(begin - at.block), own);
      begin += blocks;
    }
  }

  // Segments are outermost, so that a segment of the panel is still in L1 when all rows of the pass
  // read it.
  static void run_piece(const Piece& piece, const SharedPanel* shared, const Scratch& own) {
    const PanelEngine& engine = *piece.job.engine;
    const PanelLayout& layout = engine.layout();
    const PanelWork& work = *piece.job.work;
    work.begin(piece.tile, own.state);
    if (shared) shared->fill(piece.tile, own.state, work);
    const size_t segment_size = segment_floats(layout, piece.tile.width);
    // Passes share a small panel; else each makes it anew, segment by segment.
    const bool keeps = piece.end_block - piece.first_block > engine.pass_blocks() &&
                       small_panel(layout, piece.tile.width);
    for (size_t first = piece.first_block; first < piece.end_block; first += engine.pass_blocks())
      for (int64_t segment = 0; segment < layout.segments; ++segment) {
        const bool fills = !shared && (!keeps || first == piece.first_block);
        float* x = shared ? shared->segment(segment)
                          : own.panel + (keeps ? static_cast<size_t>(segment) * segment_size : 0);
        if (shared) shared->wait_for(segment);
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
  size_t count_;
  const PanelTiles& tiles_;
  const WorkPlan& plan_;
  size_t own_bytes_ = 0, sums_at_ = 0, state_at_ = 0;
  std::vector<SharedTile> shared_;
  std::vector<SharedPanel> panels_;
  size_t shared_bytes_ = 0;
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

PanelEngine::PanelEngine(const PanelLayout& layout, int max_width, int64_t sums_bytes)
    : layout_(layout) {
  const int64_t block_bytes = float_bytes(static_cast<int64_t>(sums_rows(layout)) * max_width);
  pass_blocks_ = static_cast<size_t>(std::clamp<int64_t>(
      sums_bytes / block_bytes, 1, static_cast<int64_t>(layout_.blocks.size())));
}

WorkGrid PanelEngine::grid(const PanelTiles& tiles, const PanelRates& rates,
                           int64_t columns) const {
  const double width = tiles.full_width;
  double rows = 0;
  for (const PanelBlock& block : layout_.blocks) rows += static_cast<double>(block.outputs);
  const double fill = static_cast<double>(columns) * rates.column / rows;
  std::vector<double> blocks;
  for (const PanelBlock& block : layout_.blocks)
    blocks.push_back(width * (static_cast<double>(block.outputs) * fill +
                              block.multiplications(kRowVisit) * rates.weight));
  std::vector<double> tails;
  // Narrow tiles share the load of a weight among fewer samples.
  for (const PanelTile& tail : tiles.tails) tails.push_back(0.25 + 0.75 * tail.width / width);
  return {tiles.full, std::move(tails), blocks};
}

void run_panels(const PanelJob* jobs, size_t count, const PanelTiles& tiles, const WorkPlan& plan,
                const Executor& executor) {
  Runner(jobs, count, tiles, plan).run(executor);
}

}  // namespace fanin
