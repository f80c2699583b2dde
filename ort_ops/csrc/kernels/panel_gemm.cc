#include "kernels/panel_gemm.h"

#include <algorithm>

#include "core/work_plan.h"
#include "kernels/panel_engine.h"
#include "kernels/panel_layout.h"

namespace fanin {
namespace {

// Of transposing a column of a sample, from L2 (Zen 4: 9 us for 3072 columns of 16 samples).
constexpr double kMicrosecondsPerColumnSample = 0.00019;

// Inputs and outputs larger than this are no longer, or not yet, in L2 when they are needed, so
// they are prefetched during the sums. The limit of outputs is lower, since a line must be in cache
// before it can be written.
constexpr int64_t kFetchedInputBytes = 1024 * 1024;
constexpr int64_t kFetchedOutputBytes = 256 * 1024;

// Sums of one sweep over the segments: they should stay in L2 while the weights stream through it.
constexpr int64_t kSumsBytes = 128 * 1024;

// A part loads and stores the sums of its rows once, so a row should have about 20 weights in a
// segment; but a segment should also stay in L1 or nearly so: 192 columns times 32 samples are 24
// KB.
struct Segments {
  double weights;
  int64_t least;
  int64_t most;
};

constexpr Segments kFloatSegments{20, 192, 1280};
// As bfloat16, 512 columns times 32 samples are 32 KB. Against 192 columns and 20 weights (Zen 4):
// 2-12 % less time.
constexpr Segments kPairSegments{60, 512, 1280};
static_assert(kFloatSegments.most <= kPanelMaxColumns && kPairSegments.most <= kPanelMaxColumns);

PanelLayout pack(const CondensedView& view, PanelEntry entry, const Executor& executor) {
  const Segments& cut = entry == PanelEntry::kPair ? kPairSegments : kFloatSegments;
  return pack_panel(view, entry, segment_columns(view, entry, cut.weights, cut.least, cut.most),
                    PanelEnd::kSums, executor);
}

int64_t float_bytes(int64_t floats) { return floats * static_cast<int64_t>(sizeof(float)); }

// Samples are rows of x; both fill and drain transpose.
class GemmWork final : public PanelWork {
 public:
  GemmWork(const PanelLayout& layout, const PanelOps& ops, int64_t in_features,
           int64_t out_features, const float* x, int64_t batch, float* y, const Epilogue& epilogue)
      : layout_(layout),
        ops_(ops),
        in_features_(in_features),
        out_features_(out_features),
        x_(x),
        y_(y),
        epilogue_(epilogue),
        fetch_x_(float_bytes(batch * in_features) > kFetchedInputBytes),
        fetch_y_(float_bytes(batch * out_features) > kFetchedOutputBytes) {}

  void fill(const PanelTile& tile, const uint8_t*, int64_t segment, float* to) const override {
    const int64_t first = layout_.first_column(segment);
    ops_.fill(x_ + tile.first * in_features_ + first, in_features_, tile.samples,
              std::min(layout_.segment_columns, in_features_ - first), tile.width, to);
  }

  PanelAhead input_ahead(const PanelTile& tile, int64_t segment, int64_t rows) const override {
    if (!fetch_x_) return {};
    const int64_t first = layout_.first_column(segment);
    return panel_ahead(x_ + tile.first * in_features_ + first, float_bytes(in_features_),
                       tile.samples,
                       float_bytes(std::min(layout_.segment_columns, in_features_ - first)), rows);
  }

  void add(const PanelTile& tile, const PanelBlock&, const PanelAddend& addend, float* sums,
           PanelAhead& ahead) const override {
    ops_.sum(addend.part, addend.segment, addend.bias, tile.width, sums, ahead);
  }

  void finish(const PanelTile& tile, const PanelBlock& block, const PanelAddend& addend,
              float* sums) const override {
    const int64_t at = tile.first * out_features_ + block.first_output;
    PanelAhead ahead;
    if (fetch_y_)
      ahead = panel_ahead(y_ + at, float_bytes(out_features_), tile.samples,
                          float_bytes(block.outputs), block.outputs);
    ops_.sum(addend.part, addend.segment, addend.bias, tile.width, sums, ahead);
    ops_.drain(sums, block.outputs, tile.width, tile.samples,
               {y_ + at, epilogue_.residual ? epilogue_.residual + at : nullptr, out_features_,
                epilogue_.clip_min, epilogue_.clip_max});
  }

 private:
  const PanelLayout& layout_;
  const PanelOps& ops_;
  int64_t in_features_;
  int64_t out_features_;
  const float* x_;
  float* y_;
  const Epilogue& epilogue_;
  bool fetch_x_;
  bool fetch_y_;
};

class PanelGemm final : public GemmKernel {
 public:
  PanelGemm(const CondensedView& view, const PanelOps& ops, const Executor& executor)
      : ops_(ops),
        in_features_(view.in_features),
        out_features_(view.out_features),
        layout_(pack(view, ops.entry, executor)),
        engine_(layout_, ops.max_width, kSumsBytes) {}

  void run(const float* x, int64_t batch, float* y, const Epilogue& epilogue,
           const Executor& executor) const override {
    WorkPlan spare;
    const PlanCache::Key key{batch, executor.concurrency(), executor.dispatch_cost()};
    const WorkPlan& chosen =
        plans_.find(key, spare, [&] { return plan(batch, key.threads, key.dispatch); });
    const GemmWork work(layout_, ops_, in_features_, out_features_, x, batch, y, epilogue);
    const PanelJob job{&engine_, &work};
    run_panels(&job, 1, make_panel_tiles(batch, chosen.tile_width, ops_.min_width), chosen,
               executor);
  }

  WorkPlan plan(int64_t batch, size_t threads, const DispatchCost& dispatch) const override {
    return engine_.plan(batch, ops_.max_width, ops_.min_width,
                        {ops_.microseconds_per_weight, kMicrosecondsPerColumnSample}, in_features_,
                        threads, dispatch);
  }

  LayoutInfo info() const override { return panel_info(layout_); }

  bool holds(const CondensedView& view) const override {
    return in_features_ == view.in_features && out_features_ == view.out_features &&
           holds_panel(layout_, view);
  }

 private:
  const PanelOps& ops_;
  int64_t in_features_;
  int64_t out_features_;
  PanelLayout layout_;
  PanelEngine engine_;
  PlanCache plans_;
};

}  // namespace

std::unique_ptr<GemmKernel> pack_panel_gemm(const CondensedView& view, const PanelOps& ops,
                                            const Executor& executor) {
  return std::make_unique<PanelGemm>(view, ops, executor);
}

}  // namespace fanin
