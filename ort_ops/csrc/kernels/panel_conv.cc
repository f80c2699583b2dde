#include "kernels/panel_conv.h"

#include <algorithm>
#include <vector>

#include "core/work_plan.h"
#include "kernels/panel_conv_pixels.h"
#include "kernels/panel_engine.h"
#include "kernels/panel_layout.h"

namespace fanin {
namespace {

// Time of filling a column and pixel of the panel (Cascade Lake).
constexpr double kMicrosecondsPerColumnPixel = 0.0001;

// Larger outputs are not in L2, see panel_gemm.cc.
constexpr int64_t kFetchedOutputBytes = 256 * 1024;

// Pixels of a tile, for any width of a strip: with 64, two panels of 32 compete for L1 (4 to 10 %
// slower, unless there are fewer than 100 columns).
constexpr int kTilePixels = 32;

// Images of 7 x 7 are one tile, so that the weights are read once (3 to 8 % faster).
constexpr int kOneTilePixels = 64;

// Sums of one sweep, see panel_gemm.cc: those of 512 outputs and two strips still fit.
constexpr int64_t kSumsBytes = 192 * 1024;

// As in panel_gemm.cc; 13 instead of 20 weights per row and segment are 0 to 4 % slower.
constexpr double kStepsPerSegment = 24;
constexpr int64_t kMinSegmentColumns = 240;
constexpr int64_t kMaxSegmentColumns = 1280;
static_assert(kMaxSegmentColumns <= kPanelMaxColumns);

int64_t float_bytes(int64_t floats) { return floats * static_cast<int64_t>(sizeof(float)); }

// One group of filters with the input channels that they share.
class Group {
 public:
  Group(const CondensedView& view, const ConvGeometry& geometry, const Executor& executor)
      : layout_(pack_panel(view, PanelEntry::kFloat,
                           segment_columns(view, PanelEntry::kFloat, kStepsPerSegment,
                                           kMinSegmentColumns, kMaxSegmentColumns),
                           PanelEnd::kRegisters, executor)),
        engine_(layout_, kOneTilePixels, kSumsBytes) {
    std::vector<bool> used(static_cast<size_t>(view.in_features));
    for (int64_t i = 0; i < view.active; ++i) {
      const int64_t entries = view.true_fan_in(i);
      for (int64_t j = 0; j < entries; ++j) used[static_cast<size_t>(view.index(i, j))] = true;
    }
    for (int64_t c = 0; c < view.in_features; ++c) {
      if (c % layout_.segment_columns == 0) first_columns_.push_back(columns_.size());
      if (!used[static_cast<size_t>(c)]) continue;
      columns_.push_back({static_cast<uint32_t>(c % layout_.segment_columns + 1),
                          static_cast<uint32_t>(c % geometry.taps()), c / geometry.taps()});
    }
    first_columns_.push_back(columns_.size());
    // Tap by tap, see panel_conv_fill.h.
    for (size_t s = 0; s + 1 < first_columns_.size(); ++s)
      std::stable_sort(columns_.data() + first_columns_[s], columns_.data() + first_columns_[s + 1],
                       [](const ConvColumn& a, const ConvColumn& b) { return a.tap < b.tap; });
  }

  const PanelLayout& layout() const { return layout_; }
  const PanelEngine& engine() const { return engine_; }

  // The columns of a segment that some weight reads: only these are filled.
  const ConvColumn* columns(int64_t segment) const {
    return columns_.data() + first_columns_[static_cast<size_t>(segment)];
  }
  size_t column_count(int64_t segment) const {
    return first_columns_[static_cast<size_t>(segment) + 1] -
           first_columns_[static_cast<size_t>(segment)];
  }
  size_t column_count() const { return columns_.size(); }
  size_t bytes() const {
    return columns_.size() * sizeof(ConvColumn) + first_columns_.size() * sizeof(size_t);
  }

 private:
  PanelLayout layout_;
  PanelEngine engine_;
  std::vector<ConvColumn> columns_;
  std::vector<size_t> first_columns_;  // [segments + 1]
};

// A group's run. Samples are output pixels of all images.
class ConvWork final : public PanelWork {
 public:
  ConvWork(const Group& group, const ConvGeometry& geometry, const PanelConvOps& ops,
           const ConvPixels& pixels, const float* x, float* y, const ConvEpilogue& epilogue,
           int64_t batch)
      : group_(group),
        ops_(ops),
        pixels_(pixels),
        out_channels_(geometry.out_channels),
        x_(x),
        y_(y),
        epilogue_(epilogue),
        fetch_y_(float_bytes(batch * geometry.out_channels * pixels.pixels()) >
                 kFetchedOutputBytes) {}

  size_t state_bytes() const override { return pixels_.state_bytes(kOneTilePixels, ops_.lanes); }

  void begin(const PanelTile& tile, uint8_t* state) const override {
    pixels_.build(tile, std::min(tile.width, ops_.lanes), state);
  }

  void fill(const PanelTile& tile, const uint8_t* state, int64_t segment,
            float* to) const override {
    ops_.fill(pixels_.source(x_, state), group_.columns(segment), group_.column_count(segment),
              strips(tile), to);
  }

  void add(const PanelTile& tile, const PanelBlock&, const PanelAddend& addend, float* sums,
           PanelAhead&) const override {
    ops_.sum(addend.part, addend.segment, addend.bias, strips(tile), sums);
  }

  void finish(const PanelTile& tile, const PanelBlock& block, const PanelAddend& addend,
              float* sums) const override {
    const int64_t image = tile.first / pixels_.pixels();
    const int64_t last_image = (tile.first + tile.samples - 1) / pixels_.pixels();
    if (image == last_image) {
      ops_.finish(addend.part, addend.segment, addend.bias, strips(tile), sums,
                  output(block, tile.first, tile.samples));
      return;
    }
    ops_.sum(addend.part, addend.segment, addend.bias, strips(tile), sums);
    for (int at = 0; at < tile.samples; ++at)
      drain_pixel(sums, at, strips(tile), output(block, tile.first + at, 1));
  }

 private:
  ConvOutput output(const PanelBlock& block, int64_t first, int count) const {
    const int64_t image = first / pixels_.pixels(), pixel = first % pixels_.pixels();
    const int64_t at = (image * out_channels_ + block.first_output) * pixels_.pixels() + pixel;
    return {y_ + at,
            epilogue_.residual ? epilogue_.residual + at : nullptr,
            pixels_.pixels(),
            static_cast<uint32_t>(block.outputs),
            count,
            epilogue_.clip_min,
            epilogue_.clip_max,
            !epilogue_.gate.open(),
            epilogue_.gate.scale,
            epilogue_.gate.shift,
            fetch_y_};
  }

  ConvStrips strips(const PanelTile& tile) const {
    const PanelLayout& layout = group_.layout();
    const int width = std::min(tile.width, ops_.width);
    return {width, (tile.samples + width - 1) / width, (layout.segment_columns + 1) * width,
            (layout.block_rows + 1) * width};
  }

  // Writes one pixel's sums, for a tile with the end of one image and the beginning of another.
  void drain_pixel(const float* sums, int at, const ConvStrips& strips,
                   const ConvOutput& to) const {
    const float* from = sums + at / strips.width * strips.sums_stride + at % strips.width;
    for (int64_t r = 0; r < to.outputs; ++r) {
      const float sum = from[r * strips.width];
      to.y[r * to.stride] = epilogue_.apply(to.residual ? sum + to.residual[r * to.stride] : sum);
    }
  }

  const Group& group_;
  const PanelConvOps& ops_;
  const ConvPixels& pixels_;
  int64_t out_channels_;
  const float* x_;
  float* y_;
  const ConvEpilogue& epilogue_;
  bool fetch_y_;
};

// Tiles of up to `most` pixels: whole strips, and a narrower one for the rest.
PanelTiles make_conv_tiles(int64_t pixels, int most, const PanelConvOps& ops) {
  PanelTiles tiles{pixels / most, most, {}};
  for (int64_t first = tiles.full * most; first < pixels; first += tiles.tails.back().samples) {
    const int64_t left = pixels - first, rest = left % ops.width;
    // A rest of more than half a strip takes a whole strip.
    const int64_t strips = left / ops.width + (rest > ops.width / 2);
    int width = static_cast<int>(std::max<int64_t>(strips, 1)) * ops.width;
    while (strips == 0 && width > ops.min_width && width / 2 >= rest) width /= 2;
    tiles.tails.push_back({first, static_cast<int>(std::min<int64_t>(width, left)), width});
  }
  return tiles;
}

// The layers of the groups, each with outputs counted from 0.
std::vector<CondensedView> split_groups(const CondensedView& view, const ConvGeometry& geometry,
                                        std::vector<int32_t>& rows) {
  std::vector<CondensedView> groups(static_cast<size_t>(geometry.group), view);
  rows.assign(view.rows, view.rows + view.active);
  const int64_t outputs = geometry.group_outputs();
  for (int64_t g = 0, row = 0; g < geometry.group; ++g) {
    CondensedView& group = groups[static_cast<size_t>(g)];
    const int64_t first = row;
    for (; row < view.active && rows[row] < (g + 1) * outputs; ++row)
      rows[row] -= static_cast<int32_t>(g * outputs);
    group.out_features = outputs;
    group.active = row - first;
    group.rows = rows.data() + first;
    group.bias = view.bias + g * outputs;
    const int64_t entries = first * view.fan_in;
    const int64_t index_bytes = view.index_type == IndexType::kUint16 ? 2 : 4;
    group.values = static_cast<const uint8_t*>(view.values) +
                   entries * static_cast<int64_t>(value_bytes(view.value_type));
    group.indices = static_cast<const uint8_t*>(view.indices) + entries * index_bytes;
  }
  return groups;
}

class PanelConv final : public ConvKernel {
 public:
  PanelConv(const CondensedView& view, const ConvGeometry& geometry, const PanelConvOps& ops,
            const Executor& executor)
      : ops_(ops), geometry_(geometry) {
    std::vector<int32_t> rows;
    for (const CondensedView& group : split_groups(view, geometry, rows))
      groups_.push_back(std::make_unique<Group>(group, geometry, executor));
  }

  void run(const float* x, const ConvInput& input, float* y, const ConvEpilogue& epilogue,
           const Executor& executor) const override {
    const ConvPixels pixels(geometry_, input);
    const int64_t samples = input.batch * pixels.pixels();
    WorkPlan spare;
    const PlanCache::Key key{samples, executor.concurrency(), executor.dispatch_cost()};
    const WorkPlan& chosen =
        plans_.find(key, spare, [&] { return plan_pixels(samples, key.threads, key.dispatch); });
    std::vector<ConvEpilogue> epilogues(groups_.size(), epilogue);
    std::vector<ConvWork> works;
    std::vector<PanelJob> jobs;
    works.reserve(groups_.size());
    for (size_t g = 0; g < groups_.size(); ++g) {
      const int64_t first_output = static_cast<int64_t>(g) * geometry_.group_outputs();
      const int64_t out_at = first_output * pixels.pixels();
      const int64_t in_at =
          static_cast<int64_t>(g) * geometry_.group_inputs() * pixels.channel_size();
      if (epilogue.residual) epilogues[g].residual += out_at;
      works.emplace_back(*groups_[g], geometry_, ops_, pixels, x + in_at, y + out_at, epilogues[g],
                         input.batch);
      jobs.push_back({&groups_[g]->engine(), &works[g]});
    }
    run_panels(jobs.data(), jobs.size(), make_conv_tiles(samples, chosen.tile_width, ops_), chosen,
               executor);
  }

  WorkPlan plan(const ConvInput& input, size_t threads,
                const DispatchCost& dispatch) const override {
    const int64_t samples = input.batch * ConvPixels(geometry_, input).pixels();
    return plan_pixels(samples, threads, dispatch);
  }

  LayoutInfo info() const override {
    LayoutInfo sum{0, 0.0, 0.0};
    double weights = 0, padded = 0;
    for (const auto& group : groups_) {
      sum.bytes += panel_info(group->layout()).bytes + static_cast<int64_t>(group->bytes());
      weights += static_cast<double>(group->layout().true_weights);
      padded += static_cast<double>(group->layout().padded_weights);
    }
    sum.padding = weights > 0 ? padded / weights : 1.0;
    return sum;
  }

  bool holds(const CondensedView& view, const ConvGeometry& geometry) const override {
    if (!(geometry == geometry_)) return false;
    std::vector<int32_t> rows;
    const std::vector<CondensedView> views = split_groups(view, geometry, rows);
    for (size_t g = 0; g < groups_.size(); ++g)
      if (!holds_panel(groups_[g]->layout(), views[g])) return false;
    return true;
  }

 private:
  // The best of all widths of tiles, see PanelEngine::plan.
  WorkPlan plan_pixels(int64_t pixels, size_t threads, const DispatchCost& dispatch) const {
    const int widest = pixels <= kOneTilePixels ? kOneTilePixels : kTilePixels;
    WorkPlan best;
    for (int width = widest; width >= ops_.min_width; width /= 2) {
      WorkPlan plan = plan_work(grids(make_conv_tiles(pixels, width, ops_)), threads, dispatch);
      plan.tile_width = width;
      if (best.tile_width == 0 || plan.time() < best.time()) best = std::move(plan);
      if (threads == 1) break;
    }
    return best;
  }

  std::vector<WorkGrid> grids(const PanelTiles& tiles) const {
    const PanelRates rates{ops_.microseconds_per_mac, kMicrosecondsPerColumnPixel};
    std::vector<WorkGrid> result;
    for (const auto& group : groups_)
      result.push_back(group->engine().grid(tiles, kTilePixels, rates,
                                            static_cast<int64_t>(group->column_count())));
    return result;
  }

  const PanelConvOps& ops_;
  ConvGeometry geometry_;
  std::vector<std::unique_ptr<Group>> groups_;
  PlanCache plans_;
};

}  // namespace

std::unique_ptr<ConvKernel> pack_panel_conv(const CondensedView& view, const ConvGeometry& geometry,
                                            const PanelConvOps& ops, const Executor& executor) {
  return std::make_unique<PanelConv>(view, geometry, ops, executor);
}

}  // namespace fanin
