#include "kernels/quantized_window_conv.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/divide_up.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "kernels/quantized_conv_columns.h"
#include "kernels/quantized_conv_strips.h"
#include "kernels/quantized_window_groups.h"

namespace fanin {
namespace {

// For plans (an estimate): copying x, with its border.
constexpr double kMicrosecondsPerCopiedByte = 3e-5;

// Pixels that pass a group before the next one, so that its weights come from L1: 5 to 20 % less
// time than with 8. The rows of their windows come from L2.
constexpr int64_t kBlockPixels = 64;

// Outputs of a strip that are transposed stay in L2.
constexpr int64_t kTransposedOutputs = 256 * 1024;

class QuantizedWindowConv final : public QuantizedConvKernel {
 public:
  QuantizedWindowConv(const CondensedView& view, const ConvGeometry& geometry,
                      const QuantizedWindowOps& ops, const Executor& executor)
      : ops_(ops),
        geometry_(geometry),
        order_(ConvColumnOrder::of_image(geometry)),
        groups_(ConvColumns(view, geometry, order_).view(), order_.segment, ops, executor) {
    // Steps follow the columns, so those of one row of the window lie side by side.
    for (size_t group = 0; group < groups_.count(); ++group) {
      const QuantizedSteps& steps = groups_.steps()[group];
      const uint32_t* end = steps.displacements + steps.count;
      for (int64_t row = 0; row < geometry.kernel[0]; ++row)
        row_ends_.push_back(static_cast<uint32_t>(
            std::lower_bound(steps.displacements, end, (row + 1) * order_.segment) -
            steps.displacements));
    }
  }

  void run(const QuantizedImages& x, void* y, const QuantizedEpilogue& epilogue,
           const Executor& executor) const override;

  WorkPlan plan(const ConvInput& input, size_t threads,
                const DispatchCost& dispatch) const override {
    return plan(input, form(true, ops_.x_type), threads, dispatch);
  }

  LayoutInfo info() const override {
    LayoutInfo info = groups_.info();
    info.bytes += static_cast<int64_t>(row_ends_.size() * sizeof(uint32_t));
    return info;
  }

  bool holds(const CondensedView& view, const ConvGeometry& geometry) const override {
    return geometry == geometry_ && groups_.holds(ConvColumns(view, geometry, order_).view());
  }

 private:
  StripForm form(bool channels_last, QuantizedType type) const {
    return {channels_last, type != ops_.x_type,
            std::max<int64_t>(0, ops_.geometry.columns - order_.segment)};
  }

  // The most pixels of a strip on one thread.
  int64_t widest(const StripForm& form) const {
    if (form.channels_last) return ConvStrips::kAll;
    return std::max<int64_t>(kQuantizedTile, kTransposedOutputs / geometry_.out_channels);
  }

  // The best of all sizes of strips: small ones give more units where a layer has few groups.
  WorkPlan plan(const ConvInput& input, const StripForm& form, size_t threads,
                const DispatchCost& dispatch) const {
    WorkPlan best;
    for (int64_t most = widest(form); most >= kQuantizedTile;) {
      const ConvStrips strips(geometry_, input, form, most);
      const double copied =
          strips.copies() ? kMicrosecondsPerCopiedByte * static_cast<double>(strips.copied_bytes())
                          : 0.0;
      const WorkGrid grid(strips.count(), {}, groups_.microseconds(strips.most_pixels()), copied);
      WorkPlan plan = plan_work({grid}, threads, dispatch);
      plan.tile_width = static_cast<int>(strips.most_pixels());
      if (best.tile_width == 0 || plan.time() < best.time()) best = std::move(plan);
      if (threads == 1) break;
      most = strips.most_pixels() / 2;
    }
    return best;
  }

  // The steps of all groups, with displacements for images whose rows are `pitch` bytes apart.
  void place_steps(int64_t pitch, QuantizedSteps* steps, uint32_t* displacements) const {
    const auto rows = static_cast<size_t>(geometry_.kernel[0]);
    const uint32_t* ends = row_ends_.data();
    for (size_t group = 0; group < groups_.count(); ++group, ends += rows) {
      steps[group] = groups_.steps()[group];
      const uint32_t* from = steps[group].displacements;
      // Modulo 2^32, since a pitch can be less than a segment.
      auto shift = uint32_t{0};
      for (size_t row = 0, i = 0; row < rows; ++row) {
        for (; i < ends[row]; ++i) displacements[i] = from[i] + shift;
        shift += static_cast<uint32_t>(pitch - order_.segment);
      }
      steps[group].displacements = displacements;
      displacements += steps[group].count;
    }
  }

  // Groups first to last - 1 of the pixels of a strip.
  void run_pixels(const QuantizedSteps* steps, size_t first, size_t last, const StripPixels& pixels,
                  int64_t count, const StripOutputs::Place& to, int32_t zero_point,
                  const QuantizedEpilogue& epilogue, const FinishBounds& bounds) const {
    const uint8_t* windows[kBlockPixels];
    int32_t zero_points[kBlockPixels];
    std::fill(zero_points, zero_points + kBlockPixels, zero_point);
    const int64_t element = element_bytes(epilogue.type);
    while (first < last) {
      const size_t end = groups_.resident(first, last);
      for (int64_t pixel = 0; pixel < count; pixel += kBlockPixels) {
        const auto samples = static_cast<int>(std::min<int64_t>(kBlockPixels, count - pixel));
        pixels.windows(pixel, samples, windows);
        const int64_t at = pixel * to.stride * element;
        groups_.run(steps, first, end,
                    {windows, samples, zero_points, true, nullptr, to.y + at,
                     to.residual ? to.residual + at : nullptr, to.stride, to.output_stride},
                    epilogue, bounds);
      }
      first = end;
    }
  }

  const QuantizedWindowOps& ops_;
  ConvGeometry geometry_;
  ConvColumnOrder order_;
  QuantizedWindowGroups groups_;
  std::vector<uint32_t> row_ends_;  // of each group and row of the window: the end of its steps
  PlanCache plans_;
};

void QuantizedWindowConv::run(const QuantizedImages& x, void* y, const QuantizedEpilogue& epilogue,
                              const Executor& executor) const {
  const StripForm images = form(x.channels_last, x.type);
  WorkPlan spare;
  PlanCache::Key key{x.size.batch, executor.concurrency(), executor.dispatch_cost()};
  key.height = x.size.height;
  key.width = x.size.width;
  key.form = (images.channels_last ? 1 : 0) + (images.flips ? 2 : 0);
  const WorkPlan& chosen =
      plans_.find(key, spare, [&] { return plan(x.size, images, key.threads, key.dispatch); });
  const ConvStrips strips(geometry_, x.size, images, chosen.tile_width);
  const StripOutputs outputs(strips, geometry_.out_channels, x.channels_last, y, epilogue);
  const bool placed = geometry_.kernel[0] > 1 && strips.pitch() != order_.segment;

  ScratchPlan shared;
  const size_t steps_at = shared.add(placed ? groups_.count() * sizeof(QuantizedSteps) : 0);
  const size_t displacements_at = shared.add(placed ? groups_.all_steps() * sizeof(uint32_t) : 0);
  ScratchPlan own;
  const size_t patch_at = own.add(strips.scratch_bytes());
  const size_t outputs_at = own.add(outputs.scratch_bytes());
  uint8_t* scratch = thread_scratch(shared.total() + chosen.threads * own.total());
  const QuantizedSteps* steps = groups_.steps();
  if (placed) {
    auto* moved = reinterpret_cast<QuantizedSteps*>(scratch + steps_at);
    place_steps(strips.pitch(), moved, reinterpret_cast<uint32_t*>(scratch + displacements_at));
    steps = moved;
  }

  const int32_t zero_point = x.zero_point + zero_point_shift(x.type, ops_.x_type);
  const FinishBounds bounds = finish_bounds(epilogue);
  const auto groups = static_cast<int64_t>(groups_.count());
  auto body = [&](size_t part, size_t thread, bool) {
    uint8_t* mine = scratch + shared.total() + thread * own.total();
    const int64_t end = chosen.begins[part + 1];
    for (int64_t unit = chosen.begins[part]; unit < end;) {
      const ConvStrip strip = strips.strip(unit / groups);
      const int64_t first = unit % groups, last = std::min(groups, first + end - unit);
      const StripPixels pixels = strips.open(x, strip, mine + patch_at);
      const auto run_to = [&](const StripOutputs::Place& to) {
        run_pixels(steps, static_cast<size_t>(first), static_cast<size_t>(last), pixels,
                   strip.pixels(), to, zero_point, epilogue, bounds);
      };
      if (groups_.scattered()) {
        run_to(outputs.in_place(strip));
      } else {
        const int64_t rows = ops_.geometry.rows;
        const int64_t from = first * rows, until = std::min(last * rows, geometry_.out_channels);
        run_to(outputs.begin(strip, from, until, mine + outputs_at));
        outputs.end(strip, from, until, mine + outputs_at);
      }
      unit += last - first;
    }
  };
  run_plan(executor, chosen, body);
}

}  // namespace

std::unique_ptr<QuantizedConvKernel> pack_quantized_window_conv(const CondensedView& view,
                                                                const ConvGeometry& geometry,
                                                                const QuantizedWindowOps& ops,
                                                                const Executor& executor) {
  ConvStrips::check_patch(geometry);
  return std::make_unique<QuantizedWindowConv>(view, geometry, ops, executor);
}

}  // namespace fanin
