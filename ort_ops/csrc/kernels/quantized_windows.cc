#include "kernels/quantized_windows.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/parallel.h"
#include "core/scratch.h"
#include "kernels/quantized_window_groups.h"

namespace fanin {
namespace {

// Weights are read for this many samples at a time, so that those of a large layer come from L3 or
// memory once for all of them.
constexpr int64_t kMaxTileSamples = 64;

// For plans: copying x (an estimate).
constexpr double kMicrosecondsPerCopiedByte = 2e-5;

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
  bool backwards;
};

class QuantizedWindowGemm final : public QuantizedKernel {
 public:
  QuantizedWindowGemm(const CondensedView& view, const QuantizedWindowOps& ops,
                      const Executor& executor)
      : ops_(ops),
        in_features_(view.in_features),
        out_features_(view.out_features),
        groups_(view, view.in_features, ops, executor) {}

  void run(const QuantizedInput& x, int64_t batch, void* y, const QuantizedEpilogue& epilogue,
           const Executor& executor) const override {
    WorkPlan spare;
    const PlanCache::Key key{batch, executor.concurrency(), executor.dispatch_cost()};
    const WorkPlan& chosen =
        plans_.find(key, spare, [&] { return plan(batch, key.threads, key.dispatch); });
    const bool backwards = backwards_.load(std::memory_order_relaxed);
    backwards_.store(!backwards, std::memory_order_relaxed);
    const WindowRun run{x,        batch, y, epilogue, finish_bounds(epilogue), chosen.tile_width,
                        backwards};
    const size_t copied = copies(x) ? static_cast<size_t>(chosen.tile_width) * copy_stride() : 0;
    uint8_t* scratch = copied > 0 ? thread_scratch(chosen.threads * copied) : nullptr;
    const auto groups = static_cast<int64_t>(groups_.count());
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

  LayoutInfo info() const override { return groups_.info(); }

  bool holds(const CondensedView& view) const override { return groups_.holds(view); }

 private:
  WorkGrid grid(int64_t batch, int64_t width) const {
    const std::vector<double> groups = groups_.microseconds(width);
    std::vector<WorkTail> tails;
    if (const int64_t tail = batch % width; tail > 0)
      tails.push_back({groups_.microseconds(tail)[0] / groups[0],
                       static_cast<double>(tail) / static_cast<double>(width)});
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
      const size_t from = run.backwards ? groups_.resident_before(first, last) : first;
      const size_t to = run.backwards ? last : groups_.resident(first, last);
      run_groups(run, from, to, begin, samples, static_cast<int>(count));
      (run.backwards ? last : first) = run.backwards ? from : to;
    }
  }

  void run_groups(const WindowRun& run, size_t first, size_t last, int64_t sample,
                  const uint8_t* const* x, int count) const {
    const QuantizedEpilogue& epilogue = run.epilogue;
    const int32_t shift = zero_point_shift(run.x.type, ops_.x_type);
    int32_t zero_points[kMaxTileSamples];
    for (int s = 0; s < count; ++s)
      zero_points[s] =
          shift + (run.x.zero_points ? run.x.zero_points[sample + s] : run.x.zero_point);
    const auto from = [](auto* array, int64_t first) { return array ? array + first : nullptr; };
    const int64_t at = sample * out_features_ * element_bytes(epilogue.type);
    groups_.run(first, last,
                {x, count, zero_points, run.x.zero_points == nullptr,
                 from(epilogue.sample_multipliers, sample), static_cast<uint8_t*>(run.y) + at,
                 from(static_cast<const uint8_t*>(epilogue.residual), at), out_features_},
                epilogue, run.bounds);
  }

  const QuantizedWindowOps& ops_;
  int64_t in_features_;
  int64_t out_features_;
  QuantizedWindowGroups groups_;
  PlanCache plans_;

  // Every other run goes through the groups from last to first, so that a layer larger than L2
  // finds there what the previous run read last.
  mutable std::atomic<bool> backwards_{false};
};

}  // namespace

std::unique_ptr<QuantizedKernel> pack_quantized_window_gemm(const CondensedView& view,
                                                            const QuantizedWindowOps& ops,
                                                            const Executor& executor) {
  return std::make_unique<QuantizedWindowGemm>(view, ops, executor);
}

}  // namespace fanin
