#include "kernels/panel_gemm.h"

#include <algorithm>
#include <cmath>

#include "core/parallel.h"
#include "core/scratch.h"
#include "kernels/panel_layout.h"

namespace fanin {
namespace {

// Per weight and sample; a tile of 32 samples takes about 1.2 ns for each weight (Cascade Lake).
constexpr double kMicrosecondsPerWeightSample = 0.00004;

// Sums of a pass over the segments: they should stay in L2 while the weights stream through it.
constexpr int64_t kSumsBytes = 128 * 1024;

// Inputs and outputs of more than this are no longer, or not yet, in L2 when they are needed, and
// are fetched while sums are made. Outputs count earlier, since a line that is not there must come
// before it can be written.
constexpr int64_t kFetchedInputBytes = 1024 * 1024;
constexpr int64_t kFetchedOutputBytes = 256 * 1024;

// A panel of more than this is not worth keeping: making it again, segment by segment, for the next
// pass costs no more than reading it from L3, and memory stays bounded however many inputs.
constexpr int64_t kPanelBytes = 2 * 1024 * 1024;

// A part loads and stores the sums of its rows, so a row should have about 20 weights in a segment,
// but a segment should also stay in L1 or near it: 192 columns times 32 samples are 24 KB.
constexpr double kStepsPerSegment = 20;
constexpr int64_t kMinSegmentColumns = 192;
constexpr int64_t kMaxSegmentColumns = 1280;
static_assert(kMaxSegmentColumns <= kPanelMaxColumns);

int64_t segment_columns(const CondensedView& view) {
  const double density =
      std::max<double>(1, static_cast<double>(view.fan_in)) / static_cast<double>(view.in_features);
  return std::clamp(static_cast<int64_t>(kStepsPerSegment / density), kMinSegmentColumns,
                    kMaxSegmentColumns);
}

int64_t float_bytes(int64_t floats) { return floats * static_cast<int64_t>(sizeof(float)); }

// Samples that go through the layer together.
struct Tile {
  int64_t first;
  int samples;
  int width;  // of the kernel, at least `samples`
};

class PanelGemm final : public GemmKernel {
 public:
  PanelGemm(const CondensedView& view, const PanelOps& ops, const Executor& executor)
      : ops_(ops),
        in_features_(view.in_features),
        out_features_(view.out_features),
        layout_(pack_panel(view, segment_columns(view), executor)) {
    const int64_t block_bytes = float_bytes(sums_rows() * ops.max_width);
    pass_blocks_ = static_cast<size_t>(std::clamp<int64_t>(
        kSumsBytes / block_bytes, 1, static_cast<int64_t>(layout_.blocks.size())));
  }

  void run(const float* x, int64_t batch, float* y, const Epilogue& epilogue,
           const Executor& executor) const override {
    const std::vector<Tile> tiles = make_tiles(batch);
    const double work = static_cast<double>(layout_.padded_weights + out_features_) *
                        static_cast<double>(batch) * kMicrosecondsPerWeightSample;
    const size_t chunks = chunk_count(executor, work, tiles.size() * layout_.blocks.size());
    const Arrays arrays{x, y, epilogue, float_bytes(batch * in_features_) > kFetchedInputBytes,
                        float_bytes(batch * out_features_) > kFetchedOutputBytes};
    // Threads take whole tiles while there are enough for all; the blocks of the others are split.
    const size_t whole = tiles.size() / chunks * chunks;
    if (whole > 0) run_tiles(tiles.data(), whole, chunks, arrays, executor);
    for (size_t t = whole; t < tiles.size(); ++t) split_tile(tiles[t], chunks, arrays, executor);
  }

  LayoutInfo info() const override {
    size_t bytes = layout_.parts.size() * sizeof(PanelPart) +
                   layout_.blocks.size() * sizeof(PanelBlock) + layout_.bias.size() * sizeof(float);
    for (const PanelPiece& piece : layout_.pieces)
      bytes +=
          piece.weights.bytes() + piece.offsets.bytes() + piece.rows.bytes() + piece.runs.bytes();
    const double padding = layout_.true_weights == 0
                               ? 1.0
                               : static_cast<double>(layout_.padded_weights) /
                                     static_cast<double>(layout_.true_weights);
    return {static_cast<int64_t>(bytes), padding, 0.0};
  }

  bool holds(const CondensedView& view) const override {
    return in_features_ == view.in_features && out_features_ == view.out_features &&
           holds_panel(layout_, view);
  }

 private:
  struct Arrays {
    const float* x;
    float* y;
    const Epilogue& epilogue;
    bool fetch_x;
    bool fetch_y;
  };

  std::vector<Tile> make_tiles(int64_t batch) const {
    std::vector<Tile> tiles;
    for (int64_t first = 0; first < batch; first += tiles.back().samples) {
      int width = ops_.max_width;
      while (width > ops_.min_width && width / 2 >= batch - first) width /= 2;
      tiles.push_back({first, static_cast<int>(std::min<int64_t>(width, batch - first)), width});
    }
    return tiles;
  }

  size_t segment_floats(int width) const {
    return static_cast<size_t>(layout_.segment_columns + 1) * width;
  }

  // Rows of a block's sums, with the one that fills up groups; the first block is the largest.
  int64_t sums_rows() const { return layout_.blocks[0].outputs + 1; }

  size_t sums_floats(int width) const {
    return pass_blocks_ * static_cast<size_t>(sums_rows()) * width;
  }

  size_t panel_floats(int width) const {
    return segment_floats(width) * static_cast<size_t>(layout_.segments);
  }

  bool small_panel(int width) const {
    return panel_floats(width) * sizeof(float) <= static_cast<size_t>(kPanelBytes);
  }

  // Whether the passes over the segments share one panel; else each makes it segment by segment.
  bool keeps_panel(int width) const {
    return pass_blocks_ < layout_.blocks.size() && small_panel(width);
  }

  // Tiles on their own, each from the panel to the output on one thread.
  void run_tiles(const Tile* tiles, size_t count, size_t chunks, const Arrays& arrays,
                 const Executor& executor) const {
    const int width = tiles[0].width;  // the first is the widest
    ScratchPlan plan;
    plan.add((keeps_panel(width) ? panel_floats(width) : segment_floats(width)) * sizeof(float));
    const size_t sums_at = plan.add(sums_floats(width) * sizeof(float));
    uint8_t* scratch = thread_scratch(plan.total() * chunks);
    auto body = [&](size_t chunk) {
      float* panel = reinterpret_cast<float*>(scratch + chunk * plan.total());
      float* sums = reinterpret_cast<float*>(scratch + chunk * plan.total() + sums_at);
      const size_t end = chunk_begin(count, chunks, chunk + 1);
      for (size_t t = chunk_begin(count, chunks, chunk); t < end; ++t)
        run_blocks(tiles[t], 0, layout_.blocks.size(), panel,
                   keeps_panel(width) ? Panel::kToFill : Panel::kOneSegment, sums, arrays);
    };
    run_chunks(executor, chunks, body);
  }

  // One tile on all threads, which share its panel and take blocks of rows.
  void split_tile(const Tile& tile, size_t chunks, const Arrays& arrays,
                  const Executor& executor) const {
    const bool share = small_panel(tile.width);
    ScratchPlan shared;
    shared.add((share ? panel_floats(tile.width) : 0) * sizeof(float));
    ScratchPlan plan;
    plan.add((share ? 0 : segment_floats(tile.width)) * sizeof(float));
    const size_t sums_at = plan.add(sums_floats(tile.width) * sizeof(float));
    uint8_t* scratch = thread_scratch(shared.total() + chunks * plan.total());
    if (share) fill_panel(tile, chunks, reinterpret_cast<float*>(scratch), arrays, executor);
    const size_t blocks = layout_.blocks.size();
    const size_t parts = std::min(chunks, blocks);
    auto body = [&](size_t chunk) {
      uint8_t* mine = scratch + shared.total() + chunk * plan.total();
      run_blocks(tile, chunk_begin(blocks, parts, chunk), chunk_begin(blocks, parts, chunk + 1),
                 reinterpret_cast<float*>(share ? scratch : mine),
                 share ? Panel::kFilled : Panel::kOneSegment,
                 reinterpret_cast<float*>(mine + sums_at), arrays);
    };
    run_chunks(executor, parts, body);
  }

  void fill_panel(const Tile& tile, size_t chunks, float* panel, const Arrays& arrays,
                  const Executor& executor) const {
    const size_t segments = static_cast<size_t>(layout_.segments);
    const size_t parts = std::min(chunks, segments);
    auto body = [&](size_t chunk) {
      const size_t end = chunk_begin(segments, parts, chunk + 1);
      for (size_t s = chunk_begin(segments, parts, chunk); s < end; ++s)
        fill_segment(tile, static_cast<int64_t>(s), panel + s * segment_floats(tile.width), arrays);
    };
    run_chunks(executor, parts, body);
  }

  enum class Panel { kFilled, kToFill, kOneSegment };

  void fill_segment(const Tile& tile, int64_t segment, float* to, const Arrays& arrays) const {
    const int64_t first = layout_.first_column(segment);
    ops_.fill(arrays.x + tile.first * in_features_ + first, in_features_, tile.samples,
              std::min(layout_.segment_columns, in_features_ - first), tile.width, to);
  }

  // Outputs of the blocks [begin, end) for a tile. Segments are outermost, so that a segment of
  // the panel is still in L1 when all rows of the pass read it.
  void run_blocks(const Tile& tile, size_t begin, size_t end, float* panel, Panel state,
                  float* sums, const Arrays& arrays) const {
    for (size_t first = begin; first < end; first += pass_blocks_)
      for (int64_t segment = 0; segment < layout_.segments; ++segment) {
        float* x = panel;
        if (state != Panel::kOneSegment) x += segment * segment_floats(tile.width);
        const bool fills =
            state == Panel::kOneSegment || (state == Panel::kToFill && first == begin);
        if (fills) fill_segment(tile, segment, x, arrays);
        sum_blocks(tile, segment, first, std::min(end, first + pass_blocks_), x, fills, sums,
                   arrays);
      }
  }

  // Adds a segment to the sums of the blocks [first, last); after the last one they leave.
  void sum_blocks(const Tile& tile, int64_t segment, size_t first, size_t last, const float* x,
                  bool fills_next, float* sums, const Arrays& arrays) const {
    const bool is_last = segment + 1 == layout_.segments;
    PanelAhead ahead;
    if (fills_next && !is_last && arrays.fetch_x)
      ahead = input_ahead(tile, segment + 1, last - first, arrays);
    for (size_t b = first; b < last; ++b, sums += sums_rows() * tile.width) {
      const PanelBlock& block = layout_.blocks[b];
      if (is_last && arrays.fetch_y) ahead = output_ahead(tile, block, arrays);
      ops_.sum(layout_.parts[b * layout_.segments + segment], x,
               segment == 0 ? layout_.bias.data() + block.bias : nullptr, tile.width, sums, ahead);
      if (is_last) drain_block(tile, block, sums, arrays);
    }
  }

  // What fill_segment will read, to be fetched while the parts of some blocks are summed up.
  PanelAhead input_ahead(const Tile& tile, int64_t segment, size_t blocks,
                         const Arrays& arrays) const {
    const int64_t first = layout_.first_column(segment);
    return ahead(arrays.x + tile.first * in_features_ + first, in_features_, tile.samples,
                 std::min(layout_.segment_columns, in_features_ - first),
                 static_cast<int64_t>(blocks) * layout_.blocks[0].outputs);
  }

  // What drain_block will write.
  PanelAhead output_ahead(const Tile& tile, const PanelBlock& block, const Arrays& arrays) const {
    return ahead(arrays.y + tile.first * out_features_ + block.first_output, out_features_,
                 tile.samples, block.outputs, block.outputs);
  }

  // Floats [samples, columns] of an array, to be fetched while so many rows are summed up.
  static PanelAhead ahead(const float* from, int64_t stride, int samples, int64_t columns,
                          int64_t rows) {
    PanelAhead ahead;
    ahead.at = reinterpret_cast<const char*>(from);
    ahead.stride = float_bytes(stride);
    ahead.strips_per_line = (samples + kPanelAheadRows - 1) / kPanelAheadRows;
    ahead.strips = (float_bytes(columns) + 63) / 64 * ahead.strips_per_line;
    const int64_t groups = (rows + kPanelGroupRows - 1) / kPanelGroupRows;
    ahead.strips_per_group = (ahead.strips + groups - 1) / groups;
    return ahead;
  }

  void drain_block(const Tile& tile, const PanelBlock& block, const float* sums,
                   const Arrays& arrays) const {
    const int64_t at = tile.first * out_features_ + block.first_output;
    const Epilogue& epilogue = arrays.epilogue;
    ops_.drain(sums, block.outputs, tile.width, tile.samples,
               {arrays.y + at, epilogue.residual ? epilogue.residual + at : nullptr, out_features_,
                epilogue.clip_min, epilogue.clip_max});
  }

  const PanelOps& ops_;
  int64_t in_features_;
  int64_t out_features_;
  PanelLayout layout_;
  size_t pass_blocks_;  // blocks whose sums are made in one pass over the segments
};

}  // namespace

std::unique_ptr<GemmKernel> pack_panel_gemm(const CondensedView& view, const PanelOps& ops,
                                            const Executor& executor) {
  return std::make_unique<PanelGemm>(view, ops, executor);
}

}  // namespace fanin
