#include "kernels/window_gemm.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/parallel.h"
#include "core/scratch.h"
#include "kernels/source_row.h"
#include "kernels/window_layout.h"

namespace fanin {
namespace {

// Samples whose planes are computed at a time; larger batches are cut into slices.
constexpr int64_t kSlice = 8;

// For plans: 64 lanes take 5 (Zen 4) to 14 ns (Cascade Lake at 3.1 GHz, from L3) for the first
// sample, and 3 to 5 ns of permutes for each further one.
constexpr double kMicrosecondsPerLane = 0.0001;
constexpr double kMicrosecondsPerLaneSample = 0.00005;

// A group's outputs are counted as this many steps (an estimate).
constexpr size_t kGroupSteps = 4;

class WindowGemm final : public GemmKernel {
 public:
  WindowGemm(const CondensedView& view, const WindowOps& ops, const Executor& executor)
      : ops_(ops),
        in_features_(view.in_features),
        out_features_(view.out_features),
        layout_(pack_windows(view, ops.geometry, executor)),
        lane_bias_(layout_.outputs.size()) {
    for (size_t i = 0; i < lane_bias_.size(); ++i)
      if (layout_.outputs[i] >= 0) lane_bias_[i] = view.bias[layout_.outputs[i]];
    int64_t stored = 0;
    for (int64_t o = 0; o < out_features_; ++o)
      if (stored < view.active && view.rows[stored] == o) {
        ++stored;
      } else {
        ablated_.push_back(static_cast<int32_t>(o));
        ablated_bias_.push_back(view.bias[o]);
      }
  }

  void run(const float* x, int64_t batch, float* y, const Epilogue& epilogue,
           const Executor& executor) const override {
    for (int64_t first = 0; first < batch; first += kSlice) {
      Epilogue slice = epilogue;
      if (slice.residual) slice.residual += first * out_features_;
      run_slice(x + first * in_features_, static_cast<int>(std::min(kSlice, batch - first)),
                y + first * out_features_, slice, executor);
    }
  }

  WorkPlan plan(int64_t batch, size_t threads, const DispatchCost& dispatch) const override {
    const double slices = static_cast<double>((batch + kSlice - 1) / kSlice);
    WorkPlan plan = plan_slice(static_cast<int>(std::min(kSlice, batch)), threads, dispatch);
    plan.microseconds *= slices;
    plan.longest *= slices;
    plan.mean *= slices;
    plan.dispatch *= slices;
    return plan;
  }

  LayoutInfo info() const override {
    const int64_t bytes = static_cast<int64_t>(
        layout_.steps * (layout_.step_bytes(ops_.geometry) + sizeof(uint16_t)) +
        layout_.remainders * sizeof(WindowRemainder) + layout_.groups.size() * sizeof(WindowGroup) +
        (layout_.outputs.size() + lane_bias_.size() + 2 * ablated_.size()) * sizeof(int32_t));
    if (layout_.weights == 0) return {bytes, 1.0, 0.0};
    const double weights = static_cast<double>(layout_.weights);
    return {bytes, static_cast<double>(lanes()) / weights,
            static_cast<double>(layout_.remainders) / weights};
  }

  bool holds(const CondensedView& view) const override {
    return in_features_ == view.in_features && out_features_ == view.out_features &&
           holds_bias(layout_.outputs, lane_bias_, view) &&
           holds_bias(ablated_, ablated_bias_, view) && holds_windows(layout_, ops_.geometry, view);
  }

 private:
  // Whether the view has these biases, bit for bit, at these outputs; -1 is none.
  static bool holds_bias(const std::vector<int32_t>& outputs, const std::vector<float>& bias,
                         const CondensedView& view) {
    for (size_t i = 0; i < outputs.size(); ++i)
      if (outputs[i] >= 0 && std::memcmp(&bias[i], &view.bias[outputs[i]], sizeof(float)) != 0)
        return false;
    return true;
  }

  size_t lanes() const { return layout_.steps * ops_.geometry.rows; }

  void run_slice(const float* x, int samples, float* y, const Epilogue& epilogue,
                 const Executor& executor) const {
    const size_t stride = static_cast<size_t>(layout_.blocks) * ops_.geometry.block_bytes;
    WorkPlan spare;
    const PlanCache::Key key{samples, executor.concurrency(), executor.dispatch_cost()};
    const WorkPlan& plan =
        plans_.find(key, spare, [&] { return plan_slice(samples, key.threads, key.dispatch); });
    uint8_t* scratch = thread_scratch(stride * samples * plan.threads);
    const bool backwards = backwards_.load(std::memory_order_relaxed);
    backwards_.store(!backwards, std::memory_order_relaxed);
    auto body = [&](size_t part, size_t thread, bool is_first) {
      // Each thread splits x for itself: no thread then waits for another, or
      // fetches planes from another core's cache.
      uint8_t* planes = scratch + thread * stride * samples;
      if (is_first)
        for (int s = 0; s < samples; ++s)
          ops_.split(x + s * in_features_, in_features_, layout_.blocks, planes + s * stride);
      const auto begin = static_cast<size_t>(plan.begins[part]);
      const auto end = static_cast<size_t>(plan.begins[part + 1]);
      for (size_t i = begin; i < end; ++i) {
        const auto group = [&](size_t at) { return backwards ? begin + end - 1 - at : at; };
        if (i + 1 < end) fetch(layout_.groups[group(i + 1)]);
        run_group(group(i), x, samples, planes, stride, y, epilogue);
      }
      run_ablated(chunk_begin(ablated_.size(), plan.parts(), part),
                  chunk_begin(ablated_.size(), plan.parts(), part + 1), samples, y, epilogue);
    };
    run_plan(executor, plan, body);
  }

  // Prefetches the first lines of the next group, which the CPU's prefetchers do not find when
  // groups run backwards.
  static void fetch(const WindowGroup& group) {
    constexpr size_t kBytes = 1280, kLine = 64;
    for (size_t at = 0; at < kBytes; at += kLine) __builtin_prefetch(group.steps + at);
  }

  WorkPlan plan_slice(int samples, size_t threads, const DispatchCost& dispatch) const {
    const double lane = kMicrosecondsPerLane + (samples - 1) * kMicrosecondsPerLaneSample;
    std::vector<double> groups;
    for (const WindowGroup& group : layout_.groups)
      groups.push_back(lane * static_cast<double>(ops_.geometry.rows) *
                       static_cast<double>(group.step_count + kGroupSteps));
    return plan_work({WorkGrid(1, {}, groups)}, threads, dispatch);
  }

  void run_group(size_t g, const float* x, int samples, const uint8_t* planes, size_t stride,
                 float* y, const Epilogue& epilogue) const {
    const WindowGroup& group = layout_.groups[g];
    const WindowGeometry& geometry = ops_.geometry;
    const WindowSteps steps{group.steps, group.advances, group.step_count};
    alignas(kAlignment) float sums[kSlice * 64];
    for (int s = 0; s < samples; s += ops_.max_samples)
      ops_.sum(steps, planes + s * stride, stride, std::min(ops_.max_samples, samples - s),
               sums + s * geometry.rows);
    for (int s = 0; s < samples; ++s) {
      float* sum = sums + s * geometry.rows;
      for (size_t i = 0; i < group.remainder_count; ++i) {
        const WindowRemainder& entry = group.remainder[i];
        sum[entry.row] += entry.weight * x[s * in_features_ + entry.column];
      }
      finish(g, sum, y + s * out_features_,
             epilogue.residual ? epilogue.residual + s * out_features_ : nullptr, epilogue);
    }
  }

  // Adds bias and residual, clips, and writes the outputs of the group's rows. Over all lanes
  // first, as vectors, since a group has few steps for each of its outputs.
  void finish(size_t g, const float* sum, float* y, const float* residual,
              const Epilogue& epilogue) const {
    const size_t rows = static_cast<size_t>(ops_.geometry.rows);
    const int32_t* outputs = layout_.outputs.data() + g * rows;
    const float* bias = lane_bias_.data() + g * rows;
    size_t count = rows;
    while (outputs[count - 1] < 0) --count;  // of the last group, which has a row at least
    alignas(kAlignment) float values[64];
    if (residual) {
      for (size_t r = 0; r < count; ++r) values[r] = residual[outputs[r]];
      for (size_t r = 0; r < count; ++r) values[r] = epilogue.apply(bias[r] + sum[r] + values[r]);
    } else {
      for (size_t r = 0; r < count; ++r) values[r] = epilogue.apply(bias[r] + sum[r]);
    }
    if (layout_.groups[g].contiguous)
      std::memcpy(y + outputs[0], values, count * sizeof(float));
    else
      for (size_t r = 0; r < count; ++r) y[outputs[r]] = values[r];
  }

  void run_ablated(size_t begin, size_t end, int samples, float* y,
                   const Epilogue& epilogue) const {
    for (int s = 0; s < samples; ++s)
      for (size_t i = begin; i < end; ++i) {
        const int64_t at = s * out_features_ + ablated_[i];
        y[at] =
            epilogue.apply(ablated_bias_[i] + (epilogue.residual ? epilogue.residual[at] : 0.0f));
      }
  }

  const WindowOps& ops_;
  int64_t in_features_;
  int64_t out_features_;
  WindowLayout layout_;
  std::vector<float> lane_bias_;  // [groups, rows], as layout_.outputs
  std::vector<int32_t> ablated_;  // outputs without a stored row
  std::vector<float> ablated_bias_;
  PlanCache plans_;  // by samples of a slice

  // Every other run goes through the groups from last to first, so that a layer larger than L2
  // finds there what the previous run read last. Results are bitwise equal in both directions.
  mutable std::atomic<bool> backwards_{false};
};

}  // namespace

std::unique_ptr<GemmKernel> pack_window_gemm(const CondensedView& view, const WindowOps& ops,
                                             const Executor& executor) {
  return std::make_unique<WindowGemm>(view, ops, executor);
}

}  // namespace fanin
