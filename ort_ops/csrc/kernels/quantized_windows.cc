#include "kernels/quantized_windows.h"

#include <algorithm>
#include <cstring>

#include "core/divide_up.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "kernels/quantized_finish.h"
#include "kernels/quantized_window_layout.h"

namespace fanin {
namespace {

constexpr int kMaxRows = 64;

// Weights are read for this many samples at a time, so that those of a large layer come from L3 or
// memory once for all of them.
constexpr int64_t kMaxTileSamples = 64;

// Weights that stay in L2 while the samples of a tile pass over them.
constexpr size_t kSharedBytes = 256 * 1024;

// For plans (estimates): a group's outputs count as this many steps; reading weights beyond L2, and
// copying x.
constexpr double kGroupSteps = 4;
constexpr size_t kCacheBytes = 1024 * 1024;
constexpr double kMicrosecondsPerColdByte = 3e-5;
constexpr double kMicrosecondsPerCopiedByte = 2e-5;

// Outputs of the lanes of one group that do not lie side by side, in the order of the lanes.
struct ScatteredGroup {
  alignas(kAlignment) float multipliers[kMaxRows];
  alignas(kAlignment) int32_t bias[kMaxRows];
  alignas(kAlignment) float float_bias[kMaxRows];
  alignas(kAlignment) uint8_t y[kQuantizedTile * kMaxRows * sizeof(float)];
  alignas(kAlignment) uint8_t residual[kQuantizedTile * kMaxRows * sizeof(float)];
};

template <typename T>
void gather(const int32_t* outputs, int lanes, const T* from, T* to) {
  for (int lane = 0; lane < lanes; ++lane) to[lane] = from[outputs[lane]];
}

void flip_signs(const uint8_t* __restrict from, size_t count, uint8_t* __restrict to) {
  for (size_t i = 0; i < count; ++i) to[i] = from[i] ^ 0x80;
}

// One run: its arguments and what follows from them.
struct WindowRun {
  const QuantizedInput& x;
  int64_t batch;
  void* y;
  const QuantizedEpilogue& epilogue;
  FinishBounds bounds;
  int64_t tile_width;
  size_t element;  // bytes of an element of y
};

class QuantizedWindowGemm final : public QuantizedKernel {
 public:
  QuantizedWindowGemm(const CondensedView& view, const QuantizedWindowOps& ops,
                      const Executor& executor)
      : ops_(ops),
        in_features_(view.in_features),
        out_features_(view.out_features),
        layout_(pack_quantized_windows(view, ops.geometry, executor)) {}

  void run(const QuantizedInput& x, int64_t batch, void* y, const QuantizedEpilogue& epilogue,
           const Executor& executor) const override {
    WorkPlan spare;
    const PlanCache::Key key{batch, executor.concurrency(), executor.dispatch_cost()};
    const WorkPlan& chosen =
        plans_.find(key, spare, [&] { return plan(batch, key.threads, key.dispatch); });
    const WindowRun run{x,
                        batch,
                        y,
                        epilogue,
                        finish_bounds(epilogue),
                        chosen.tile_width,
                        epilogue.type == QuantizedType::kFloat32 ? sizeof(float) : 1};
    const size_t copied = copies(x) ? static_cast<size_t>(chosen.tile_width) * copy_stride() : 0;
    uint8_t* scratch = copied > 0 ? thread_scratch(chosen.threads * copied) : nullptr;
    const auto groups = static_cast<int64_t>(layout_.groups.size());
    auto body = [&](size_t part, size_t thread, bool) {
      const int64_t end = chosen.begins[part + 1];
      for (int64_t unit = chosen.begins[part]; unit < end;) {
        const int64_t tile = unit / groups, first = unit % groups;
        const int64_t last = std::min(groups, first + end - unit);
        run_tile(run, tile, static_cast<size_t>(first), static_cast<size_t>(last),
                 scratch + thread * copied);
        unit += last - first;
      }
    };
    run_plan(executor, chosen, body);
  }

  // The best of all widths of tiles: narrow ones give more units where a layer has few groups.
  WorkPlan plan(int64_t batch, size_t threads, const DispatchCost& dispatch) const override {
    WorkPlan best;
    for (int64_t width = kMaxTileSamples; width >= kQuantizedTile; width /= 2) {
      WorkPlan plan = plan_work({grid(batch, width)}, threads, dispatch);
      plan.tile_width = static_cast<int>(width);
      if (best.tile_width == 0 || plan.time() < best.time()) best = std::move(plan);
      if (threads == 1) break;
    }
    return best;
  }

  LayoutInfo info() const override {
    const size_t bytes =
        step_bytes() + (layout_.weight_sums.size() + layout_.outputs.size()) * sizeof(int32_t);
    const auto slots = static_cast<double>(layout_.steps) * 4 * ops_.geometry.rows;
    return {static_cast<int64_t>(bytes),
            layout_.weights > 0 ? slots / static_cast<double>(layout_.weights) : 1.0, 0.0};
  }

  bool holds(const CondensedView& view) const override {
    return in_features_ == view.in_features && out_features_ == view.out_features &&
           holds_quantized_windows(layout_, ops_.geometry, view);
  }

 private:
  size_t step_bytes() const {
    return layout_.steps * (static_cast<size_t>(ops_.geometry.step_bytes()) + sizeof(uint32_t));
  }

  WorkGrid grid(int64_t batch, int64_t width) const {
    // Of a tile of so many samples.
    const auto step = [&](int64_t samples) {
      const double sums =
          ops_.microseconds_per_step * static_cast<double>(divide_up(samples, ops_.max_samples));
      const double cold =
          step_bytes() > kCacheBytes ? kMicrosecondsPerColdByte * ops_.geometry.step_bytes() : 0.0;
      return std::max(sums, cold);
    };
    std::vector<double> groups;
    for (const QuantizedSteps& group : layout_.groups)
      groups.push_back((static_cast<double>(group.count) + kGroupSteps) * step(width));
    const int64_t tail = batch % width;
    std::vector<WorkTail> tails;
    if (tail > 0)
      tails.push_back(
          {step(tail) / step(width), static_cast<double>(tail) / static_cast<double>(width)});
    const double copied = in_features_ < ops_.geometry.columns ? 1.0 : 0.0;
    return WorkGrid(
        batch / width, tails, groups,
        copied * kMicrosecondsPerCopiedByte * static_cast<double>(width * in_features_));
  }

  // Whether x cannot be read where it is.
  bool copies(const QuantizedInput& x) const {
    return x.type != ops_.x_type || in_features_ < ops_.geometry.columns;
  }

  // Bytes from one copied sample to the next: not a multiple of 4096, which would put all samples
  // into the same lines of L1.
  size_t copy_stride() const {
    const auto bytes = static_cast<size_t>(std::max<int64_t>(in_features_, ops_.geometry.columns));
    const size_t lines = (bytes + kAlignment - 1) / kAlignment;
    return (lines % 64 == 0 ? lines + 1 : lines) * kAlignment;
  }

  // x of one sample as the kernel reads it.
  void copy(const QuantizedInput& x, int64_t sample, uint8_t* to) const {
    const auto* from = static_cast<const uint8_t*>(x.data) + sample * in_features_;
    const auto count = static_cast<size_t>(in_features_);
    if (x.type != ops_.x_type)
      flip_signs(from, count, to);
    else
      std::memcpy(to, from, count);
    for (int64_t i = in_features_; i < ops_.geometry.columns; ++i) to[i] = 0;
  }

  // Groups first to last - 1 of a tile of samples.
  void run_tile(const WindowRun& run, int64_t tile, size_t first, size_t last,
                uint8_t* scratch) const {
    const int64_t begin = tile * run.tile_width;
    const int64_t count = std::min(run.tile_width, run.batch - begin);
    const uint8_t* samples[kMaxTileSamples];
    for (int64_t s = 0; s < count; ++s) {
      if (copies(run.x)) {
        uint8_t* to = scratch + static_cast<size_t>(s) * copy_stride();
        copy(run.x, begin + s, to);
        samples[s] = to;
      } else {
        samples[s] = static_cast<const uint8_t*>(run.x.data) + (begin + s) * in_features_;
      }
    }
    while (first < last) {
      size_t end = first, bytes = 0;
      while (end < last && (end == first || bytes < kSharedBytes))
        bytes += layout_.groups[end++].count * static_cast<size_t>(ops_.geometry.step_bytes());
      for (int64_t s = 0; s < count; s += ops_.max_samples)
        run_groups(run, first, end, begin + s, samples + s,
                   static_cast<int>(std::min<int64_t>(ops_.max_samples, count - s)));
      first = end;
    }
  }

  void run_groups(const WindowRun& run, size_t first, size_t last, int64_t sample,
                  const uint8_t* const* samples, int count) const {
    const QuantizedEpilogue& epilogue = run.epilogue;
    alignas(kAlignment) int32_t sums[kQuantizedTile * kMaxRows];
    const int32_t shift = zero_point_shift(run.x.type, ops_.x_type);
    int32_t zero_points[kQuantizedTile];
    for (int s = 0; s < count; ++s)
      zero_points[s] =
          shift + (run.x.zero_points ? run.x.zero_points[sample + s] : run.x.zero_point);

    QuantizedFinish finish;
    finish.type = epilogue.type;
    finish.samples = count;
    finish.sample_multipliers =
        epilogue.sample_multipliers ? epilogue.sample_multipliers + sample : nullptr;
    finish.zero_points = zero_points;
    finish.common_zero_point = run.x.zero_points == nullptr;
    finish.zero_point = epilogue.zero_point;
    finish.residual_zero_point = epilogue.residual_zero_point;
    finish.residual_multiplier = epilogue.residual_multiplier;
    finish.low = run.bounds.low;
    finish.high = run.bounds.high;

    const auto rows = static_cast<size_t>(ops_.geometry.rows);
    for (size_t group = first; group < last; ++group) {
      ops_.sum(layout_.groups[group], samples, count, sums);
      finish.weight_sums = layout_.weight_sums.data() + group * rows;
      if (layout_.outputs.empty())
        finish_neighbors(run, group, sample, finish, sums);
      else
        finish_scattered(run, group, sample, finish, sums);
    }
  }

  // Outputs side by side.
  void finish_neighbors(const WindowRun& run, size_t group, int64_t sample, QuantizedFinish& finish,
                        const int32_t* sums) const {
    const QuantizedEpilogue& epilogue = run.epilogue;
    const int64_t rows = ops_.geometry.rows, output = static_cast<int64_t>(group) * rows;
    const auto at = static_cast<size_t>(sample * out_features_ + output) * run.element;
    finish.lanes = static_cast<int>(std::min(rows, out_features_ - output));
    finish.stride = out_features_;
    finish.y = static_cast<uint8_t*>(run.y) + at;
    finish.residual =
        epilogue.residual ? static_cast<const uint8_t*>(epilogue.residual) + at : nullptr;
    finish.multipliers = epilogue.multipliers + output;
    finish.bias = epilogue.bias ? epilogue.bias + output : nullptr;
    finish.float_bias = epilogue.float_bias ? epilogue.float_bias + output : nullptr;
    ops_.finish(finish, sums);
  }

  // Outputs in any order: everything is brought into the order of the lanes and back.
  void finish_scattered(const WindowRun& run, size_t group, int64_t sample, QuantizedFinish& finish,
                        const int32_t* sums) const {
    const QuantizedEpilogue& epilogue = run.epilogue;
    const int32_t* outputs =
        layout_.outputs.data() + group * static_cast<size_t>(ops_.geometry.rows);
    int lanes = ops_.geometry.rows;
    while (outputs[lanes - 1] < 0) --lanes;
    ScatteredGroup lane;
    gather(outputs, lanes, epilogue.multipliers, lane.multipliers);
    if (epilogue.bias) gather(outputs, lanes, epilogue.bias, lane.bias);
    if (epilogue.float_bias) gather(outputs, lanes, epilogue.float_bias, lane.float_bias);
    finish.lanes = lanes;
    finish.stride = kMaxRows;
    finish.y = lane.y;
    finish.residual = epilogue.residual ? lane.residual : nullptr;
    finish.multipliers = lane.multipliers;
    finish.bias = epilogue.bias ? lane.bias : nullptr;
    finish.float_bias = epilogue.float_bias ? lane.float_bias : nullptr;
    // Bytes or floats; their values do not matter here.
    const auto move = [&](auto element) {
      using T = decltype(element);
      T* y = static_cast<T*>(run.y) + sample * out_features_;
      if (epilogue.residual)
        for (int s = 0; s < finish.samples; ++s)
          gather(outputs, lanes,
                 static_cast<const T*>(epilogue.residual) + (sample + s) * out_features_,
                 reinterpret_cast<T*>(lane.residual) + s * kMaxRows);
      ops_.finish(finish, sums);
      for (int s = 0; s < finish.samples; ++s)
        for (int l = 0; l < lanes; ++l)
          y[s * out_features_ + outputs[l]] = reinterpret_cast<const T*>(lane.y)[s * kMaxRows + l];
    };
    if (epilogue.type == QuantizedType::kFloat32)
      move(float{});
    else
      move(uint8_t{});
  }

  const QuantizedWindowOps& ops_;
  int64_t in_features_;
  int64_t out_features_;
  QuantizedWindowLayout layout_;
  PlanCache plans_;
};

}  // namespace

std::unique_ptr<QuantizedKernel> pack_quantized_window_gemm(const CondensedView& view,
                                                            const QuantizedWindowOps& ops,
                                                            const Executor& executor) {
  return std::make_unique<QuantizedWindowGemm>(view, ops, executor);
}

}  // namespace fanin
