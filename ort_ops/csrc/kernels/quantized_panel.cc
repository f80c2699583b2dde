#include "kernels/quantized_panel.h"

#include <algorithm>
#include <vector>

#include "core/work_plan.h"
#include "kernels/panel_engine.h"
#include "kernels/panel_layout.h"
#include "kernels/quantized_finish.h"

namespace fanin {
namespace {

// Of transposing a column of a sample, from L2 (an estimate: a quarter of that of float32).
constexpr double kMicrosecondsPerColumnSample = 0.00005;

// Larger inputs and outputs are prefetched, see panel_gemm.cc.
constexpr int64_t kFetchedInputBytes = 1024 * 1024;
constexpr int64_t kFetchedOutputBytes = 256 * 1024;

// Sums of one sweep, see panel_gemm.cc.
constexpr int64_t kSumsBytes = 128 * 1024;

// How segments are cut, see panel_gemm.cc.
struct Segments {
  double steps;
  int64_t least;
  int64_t most;
};

// 96 quads of 64 samples are 24 KB.
constexpr Segments kQuadSegments{24, 96, 640};
constexpr Segments kFloatSegments{20, 192, kExactColumns};
static_assert(kQuadSegments.most <= kPanelMaxColumns);

PanelLayout pack(const CondensedView& view, const QuantizedPanelOps& ops,
                 const Executor& executor) {
  const PanelEntry entry = ops.quads ? PanelEntry::kQuad : PanelEntry::kFloat;
  const Segments cut = ops.quads ? kQuadSegments : kFloatSegments;
  return pack_panel(view, entry, segment_columns(view, entry, cut.steps, cut.least, cut.most),
                    PanelEnd::kSums, executor);
}

// The sum of each output's weights.
std::vector<int32_t> sum_weights(const CondensedView& view) {
  std::vector<int32_t> sums(static_cast<size_t>(view.out_features));
  const auto* values = static_cast<const int8_t*>(view.values);
  for (int64_t row = 0; row < view.active; ++row)
    for (int64_t j = 0; j < view.fan_in; ++j)
      sums[static_cast<size_t>(view.rows[row])] += values[row * view.fan_in + j];
  return sums;
}

class QuantizedPanelGemm final : public QuantizedKernel {
 public:
  QuantizedPanelGemm(const CondensedView& view, const QuantizedPanelOps& ops,
                     const Executor& executor)
      : ops_(ops),
        in_features_(view.in_features),
        out_features_(view.out_features),
        layout_(pack(view, ops, executor)),
        weight_sums_(sum_weights(view)),
        engine_(layout_, ops.max_width, kSumsBytes) {}

  void run(const QuantizedInput& x, int64_t batch, void* y, const QuantizedEpilogue& epilogue,
           const Executor& executor) const override;

  WorkPlan plan(int64_t batch, size_t threads, const DispatchCost& dispatch) const override {
    return engine_.plan(batch, ops_.max_width, ops_.min_width,
                        {ops_.microseconds_per_weight, kMicrosecondsPerColumnSample}, in_features_,
                        threads, dispatch);
  }

  LayoutInfo info() const override {
    LayoutInfo info = panel_info(layout_);
    info.bytes += static_cast<int64_t>(weight_sums_.size() * sizeof(int32_t));
    return info;
  }

  bool holds(const CondensedView& view) const override {
    return in_features_ == view.in_features && out_features_ == view.out_features &&
           holds_panel(layout_, view);
  }

 private:
  class Work;

  // Columns of x in a column of the panel.
  int64_t grain() const { return ops_.quads ? 4 : 1; }

  const QuantizedPanelOps& ops_;
  int64_t in_features_;
  int64_t out_features_;
  PanelLayout layout_;
  std::vector<int32_t> weight_sums_;  // [out_features]
  PanelEngine engine_;
  PlanCache plans_;
};

class QuantizedPanelGemm::Work final : public PanelWork {
 public:
  Work(const QuantizedPanelGemm& gemm, const QuantizedInput& x, int64_t batch, void* y,
       const QuantizedEpilogue& epilogue)
      : gemm_(gemm),
        x_(x),
        y_(static_cast<uint8_t*>(y)),
        epilogue_(epilogue),
        bounds_(finish_bounds(epilogue)),
        element_(epilogue.type == QuantizedType::kFloat32 ? sizeof(float) : 1),
        fetch_x_(batch * gemm.in_features_ > kFetchedInputBytes),
        fetch_y_(batch * gemm.out_features_ * element_ > kFetchedOutputBytes) {}

  void fill(const PanelTile& tile, const uint8_t*, int64_t segment, float* to) const override {
    const Columns from = columns(tile, segment);
    gemm_.ops_.fill(from.x, gemm_.in_features_, tile.samples, from.count, tile.width,
                    x_.type == gemm_.ops_.x_type ? 0 : 0x80, to);
  }

  PanelAhead input_ahead(const PanelTile& tile, int64_t segment, int64_t rows) const override {
    if (!fetch_x_) return {};
    const Columns from = columns(tile, segment);
    return panel_ahead(from.x, gemm_.in_features_, tile.samples, from.count, rows);
  }

  void add(const PanelTile& tile, const PanelBlock&, const PanelAddend& addend, float* sums,
           PanelAhead& ahead) const override {
    gemm_.ops_.sum(addend.part, addend.segment, addend.bias, tile.width, sums, ahead);
  }

  void finish(const PanelTile& tile, const PanelBlock& block, const PanelAddend& addend,
              float* sums) const override {
    const int64_t output = block.first_output;
    const int64_t at = (tile.first * gemm_.out_features_ + output) * element_;
    PanelAhead ahead;
    if (fetch_y_)
      ahead = panel_ahead(y_ + at, gemm_.out_features_ * element_, tile.samples,
                          block.outputs * element_, block.outputs);
    gemm_.ops_.sum(addend.part, addend.segment, addend.bias, tile.width, sums, ahead);

    const int32_t shift = zero_point_shift(x_.type, gemm_.ops_.x_type);
    int32_t zero_points[kPanelMaxSamples];
    for (int s = 0; s < tile.samples; ++s)
      zero_points[s] = shift + (x_.zero_points ? x_.zero_points[tile.first + s] : x_.zero_point);
    const auto from = [](auto* array, int64_t first) { return array ? array + first : nullptr; };
    QuantizedFinish finish;
    finish.type = epilogue_.type;
    finish.samples = tile.samples;
    finish.lanes = static_cast<int>(block.outputs);
    finish.stride = gemm_.out_features_;
    finish.y = y_ + at;
    finish.residual = from(static_cast<const uint8_t*>(epilogue_.residual), at);
    finish.weight_sums = gemm_.weight_sums_.data() + output;
    finish.multipliers = epilogue_.multipliers + output;
    finish.bias = from(epilogue_.bias, output);
    finish.float_bias = from(epilogue_.float_bias, output);
    finish.sample_multipliers = from(epilogue_.sample_multipliers, tile.first);
    finish.zero_points = zero_points;
    finish.common_zero_point = x_.zero_points == nullptr;
    finish.zero_point = epilogue_.zero_point;
    finish.residual_zero_point = epilogue_.residual_zero_point;
    finish.residual_multiplier = epilogue_.residual_multiplier;
    finish.low = bounds_.low;
    finish.high = bounds_.high;
    gemm_.ops_.drain(sums, tile.width, finish);
  }

 private:
  // The columns of a segment, of the tile's first sample.
  struct Columns {
    const uint8_t* x;
    int64_t count;
  };

  Columns columns(const PanelTile& tile, int64_t segment) const {
    const PanelLayout& layout = gemm_.layout_;
    const int64_t first = layout.first_column(segment) * gemm_.grain();
    return {static_cast<const uint8_t*>(x_.data) + tile.first * gemm_.in_features_ + first,
            std::min(layout.segment_columns * gemm_.grain(), gemm_.in_features_ - first)};
  }

  const QuantizedPanelGemm& gemm_;
  const QuantizedInput& x_;
  uint8_t* y_;
  const QuantizedEpilogue& epilogue_;
  FinishBounds bounds_;
  int64_t element_;  // bytes of an element of y
  bool fetch_x_;
  bool fetch_y_;
};

void QuantizedPanelGemm::run(const QuantizedInput& x, int64_t batch, void* y,
                             const QuantizedEpilogue& epilogue, const Executor& executor) const {
  WorkPlan spare;
  const PlanCache::Key key{batch, executor.concurrency(), executor.dispatch_cost()};
  const WorkPlan& chosen =
      plans_.find(key, spare, [&] { return plan(batch, key.threads, key.dispatch); });
  const Work work(*this, x, batch, y, epilogue);
  const PanelJob job{&engine_, &work};
  run_panels(&job, 1, make_panel_tiles(batch, chosen.tile_width, ops_.min_width), chosen, executor);
}

}  // namespace

std::unique_ptr<QuantizedKernel> pack_quantized_panel_gemm(const CondensedView& view,
                                                           const QuantizedPanelOps& ops,
                                                           const Executor& executor) {
  return std::make_unique<QuantizedPanelGemm>(view, ops, executor);
}

}  // namespace fanin
