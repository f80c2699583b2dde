#include "kernels/quantized_tiles_conv.h"

#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "core/scratch.h"
#include "kernels/quantized_conv_columns.h"
#include "kernels/quantized_conv_strips.h"
#include "kernels/quantized_dispatch.h"
#include "kernels/quantized_finish.h"

namespace fanin {
namespace {

// Pixels of a tile: the widest one of the kernels.
constexpr int64_t kTilePixels = 64;

// Least pixels of a strip, which several threads share.
constexpr int64_t kLeastPixels = 8;

// For plans (an estimate): copying x.
constexpr double kMicrosecondsPerCopiedByte = 3e-5;

// Outputs of a strip that are transposed stay in L2.
constexpr int64_t kTransposedOutputs = 256 * 1024;

class QuantizedTilesConv final : public QuantizedConvKernel {
 public:
  QuantizedTilesConv(const CondensedView& view, const ConvGeometry& geometry, Isa isa,
                     const Executor& executor)
      : geometry_(geometry), order_(ConvColumnOrder::dense(geometry)) {
    const ConvColumns columns(view, geometry, order_);
    const CondensedView gemm = columns.view();
    const QuantizedUse use{isa, cpu_kind(), {}};
    gemm_ = select_quantized_kernel(use, kTilePixels, gemm).pack(gemm, executor);
  }

  void run(const QuantizedImages& x, void* y, const QuantizedEpilogue& epilogue,
           const Executor& executor) const override;

  WorkPlan plan(const ConvInput& input, size_t threads,
                const DispatchCost& dispatch) const override {
    if (geometry_.is_pointwise())
      return gemm_->plan(input.batch * input.height * input.width, threads, dispatch);
    return plan(input, StripForm{}, threads, dispatch);
  }

  LayoutInfo info() const override { return gemm_->info(); }

  bool holds(const CondensedView& view, const ConvGeometry& geometry) const override {
    return geometry == geometry_ && gemm_->holds(ConvColumns(view, geometry, order_).view());
  }

 private:
  int64_t columns() const { return geometry_.kernel[0] * order_.segment; }

  // The best of all sizes of strips.
  WorkPlan plan(const ConvInput& input, const StripForm& form, size_t threads,
                const DispatchCost& dispatch) const {
    WorkPlan best;
    int64_t most = std::max<int64_t>(kTilePixels, kTransposedOutputs / geometry_.out_channels);
    while (most >= kLeastPixels) {
      const ConvStrips strips(geometry_, input, form, most);
      const double copied =
          static_cast<double>(strips.copied_bytes() + strips.most_pixels() * columns());
      const double strip = gemm_->plan(strips.most_pixels(), 1, dispatch).microseconds +
                           kMicrosecondsPerCopiedByte * copied;
      WorkPlan plan = plan_work({WorkGrid(strips.count(), {}, {strip})}, threads, dispatch);
      plan.tile_width = static_cast<int>(strips.most_pixels());
      if (best.tile_width == 0 || plan.time() < best.time()) best = std::move(plan);
      if (threads == 1) break;
      most = strips.most_pixels() / 2;
    }
    return best;
  }

  // Copies the windows of `count` pixels from number `first` on.
  void copy(const StripPixels& pixels, int64_t pitch, int64_t first, int64_t count,
            uint8_t* to) const {
    const bool dense = geometry_.dilations[1] == 1;
    const auto bytes = static_cast<size_t>(dense ? order_.segment : geometry_.in_channels);
    const int64_t pieces = dense ? 1 : geometry_.kernel[1];
    const int64_t step = geometry_.dilations[1] * geometry_.in_channels;
    const uint8_t* window;
    for (int64_t pixel = first; pixel < first + count; ++pixel) {
      pixels.windows(pixel, 1, &window);
      for (int64_t row = 0; row < geometry_.kernel[0]; ++row)
        for (int64_t piece = 0; piece < pieces; ++piece, to += bytes)
          std::memcpy(to, window + row * pitch + piece * step, bytes);
    }
  }

  ConvGeometry geometry_;
  ConvColumnOrder order_;
  std::unique_ptr<QuantizedKernel> gemm_;
  PlanCache plans_;
};

void QuantizedTilesConv::run(const QuantizedImages& x, void* y, const QuantizedEpilogue& epilogue,
                             const Executor& executor) const {
  const auto input = [&x](const void* data) {
    return QuantizedInput{data, x.type, x.zero_point, nullptr};
  };
  if (geometry_.is_pointwise() && x.channels_last)
    return gemm_->run(input(x.data), x.size.batch * x.size.height * x.size.width, y, epilogue,
                      executor);
  StripForm form;
  form.channels_last = x.channels_last;
  WorkPlan spare;
  PlanCache::Key key{x.size.batch, executor.concurrency(), executor.dispatch_cost()};
  key.height = x.size.height;
  key.width = x.size.width;
  key.form = form.channels_last ? 1 : 0;
  const WorkPlan& chosen =
      plans_.find(key, spare, [&] { return plan(x.size, form, key.threads, key.dispatch); });
  const ConvStrips strips(geometry_, x.size, form, chosen.tile_width);
  const StripOutputs outputs(strips, geometry_.out_channels, x.channels_last, y, epilogue);
  const int64_t element = element_bytes(epilogue.type);

  ScratchPlan own;
  const size_t patch_at = own.add(strips.scratch_bytes());
  const size_t outputs_at = own.add(outputs.scratch_bytes());
  const size_t tile_at = own.add(static_cast<size_t>(kTilePixels * columns()));
  // The kernel has scratch memory of its own.
  uint8_t* scratch = thread_scratch(chosen.threads * own.total(), ScratchUse::kActivations);
  auto body = [&](size_t part, size_t thread, bool) {
    uint8_t* mine = scratch + thread * own.total();
    for (int64_t unit = chosen.begins[part]; unit < chosen.begins[part + 1]; ++unit) {
      const ConvStrip strip = strips.strip(unit);
      const StripPixels pixels = strips.open(x, strip, mine + patch_at);
      const StripOutputs::Place to =
          outputs.begin(strip, 0, geometry_.out_channels, mine + outputs_at);
      for (int64_t first = 0; first < strip.pixels(); first += kTilePixels) {
        const int64_t count = std::min(kTilePixels, strip.pixels() - first);
        const uint8_t* windows;
        if (geometry_.is_pointwise()) {
          pixels.windows(first, 1, &windows);
        } else {
          copy(pixels, strips.pitch(), first, count, mine + tile_at);
          windows = mine + tile_at;
        }
        const int64_t at = first * to.stride * element;
        QuantizedEpilogue moved = epilogue;
        moved.residual = to.residual ? to.residual + at : nullptr;
        gemm_->run(input(windows), count, to.y + at, moved, InlineExecutor());
      }
      outputs.end(strip, 0, geometry_.out_channels, mine + outputs_at);
    }
  };
  run_plan(executor, chosen, body);
}

}  // namespace

std::unique_ptr<QuantizedConvKernel> pack_quantized_tiles_conv(const CondensedView& view,
                                                               const ConvGeometry& geometry,
                                                               Isa isa, const Executor& executor) {
  ConvStrips::check_patch(geometry);
  return std::make_unique<QuantizedTilesConv>(view, geometry, isa, executor);
}

}  // namespace fanin
