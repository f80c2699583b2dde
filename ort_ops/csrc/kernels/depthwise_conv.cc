#include "kernels/depthwise_conv.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "core/aligned_buffer.h"
#include "core/divide_up.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "kernels/taps_conv.h"

namespace fanin {
namespace {

// Cascade Lake: a multiply-add of a vector, and the two transpositions of a pixel.
constexpr double kMicrosecondsPerTapPixel = 3e-5;
constexpr double kMicrosecondsPerPixel = 4e-4;

// Pixels of `lanes` channels that are transposed at a time (at least a row), and pixels of the ring
// buffer of rows: both share L1 (16 lanes).
constexpr int64_t kBatchPixels = 112;
constexpr int64_t kRingPixels = 256;

// Beyond it, a window of padded rows takes more memory than padding in advance is worth.
constexpr double kMaxRingPixels = 1 << 20;

// The sizes of one run. The image may be empty if the pads alone are large enough for the window;
// output and padded rows never are (see validate of a ConvInput).
struct DepthwiseSizes {
  int64_t image_rows;
  int64_t height, width;  // of the output
  int64_t reach;          // rows of the window
  int64_t columns;        // of a padded row
  int64_t padded;         // rows with padding that any output row reads
  int64_t slots;          // rows of the ring
  int64_t fill_rows;      // of the image, transposed at a time
  int64_t drain_rows;     // of the output

  DepthwiseSizes(const ConvGeometry& geometry, const ConvInput& input)
      : image_rows(input.height),
        height(geometry.output_size(0, input.height)),
        width(geometry.output_size(1, input.width)),
        reach(geometry.dilations[0] * (geometry.kernel[0] - 1) + 1),
        columns(input.width + geometry.pads[1] + geometry.pads[3]),
        padded((height - 1) * geometry.strides[0] + reach),
        slots(std::clamp(kRingPixels / columns, reach, padded)),
        fill_rows(input.width > 0 ? std::max<int64_t>(1, kBatchPixels / input.width) : 1),
        drain_rows(std::clamp<int64_t>(kBatchPixels / width, 1, height)) {}
};

bool ring_fits(const ConvGeometry& geometry, const ConvInput& input) {
  const int64_t reach = geometry.dilations[0] * (geometry.kernel[0] - 1) + 1;
  const int64_t columns = input.width + geometry.pads[1] + geometry.pads[3] + 1;
  return static_cast<double>(reach) * static_cast<double>(columns) <= kMaxRingPixels;
}

class DepthwiseConv final : public ConvKernel {
 public:
  DepthwiseConv(const CondensedView& view, const ConvGeometry& geometry,
                const DepthwiseConvOps& ops)
      : ops_(ops), geometry_(geometry), rows_(view) {
    const int64_t taps = geometry.taps(), lanes = ops.lanes;
    const int64_t blocks = divide_up(geometry.out_channels, lanes);
    packed_ = AlignedBuffer<float>(static_cast<size_t>(blocks * (taps + 1) * lanes));
    std::fill(packed_.data(), packed_.data() + packed_.size(), 0.0f);
    for (int64_t o = 0; o < geometry.out_channels; ++o) {
      float* block = packed_.data() + o / lanes * (taps + 1) * lanes + o % lanes;
      block[0] = rows_.bias[o];
      for (int64_t t = 0; t < taps; ++t) block[(t + 1) * lanes] = rows_.values[o * taps + t];
    }
  }

  void run(const float* x, const ConvInput& input, float* y, const ConvEpilogue& epilogue,
           const Executor& executor) const override {
    if (!ring_fits(geometry_, input))
      return run_taps_conv(rows_, geometry_, x, input, y, epilogue, executor);
    const DepthwiseSizes sizes(geometry_, input);
    const int64_t blocks = divide_up(geometry_.out_channels, ops_.lanes);
    const int64_t strips = strips_for(sizes, input, executor.concurrency());
    const EvenWork work = work_of(sizes, input, strips);
    const size_t units = work.parts, chunks = chunk_count(executor, work);
    const Plan plan(sizes, input, geometry_, ops_.lanes);
    uint8_t* scratch = thread_scratch(plan.total * chunks);
    auto body = [&](size_t chunk) {
      uint8_t* mine = scratch + chunk * plan.total;
      const size_t end = chunk_begin(units, chunks, chunk + 1);
      for (size_t unit = chunk_begin(units, chunks, chunk); unit < end; ++unit) {
        const int64_t image_block = static_cast<int64_t>(unit) / strips;
        const size_t strip = unit % static_cast<size_t>(strips);
        const size_t rows = static_cast<size_t>(sizes.height);
        run_block({sizes, input, plan, x, y, epilogue}, image_block / blocks, image_block % blocks,
                  static_cast<int64_t>(chunk_begin(rows, static_cast<size_t>(strips), strip)),
                  static_cast<int64_t>(chunk_begin(rows, static_cast<size_t>(strips), strip + 1)),
                  mine);
      }
    };
    run_chunks(executor, chunks, body);
  }

  WorkPlan plan(const ConvInput& input, size_t threads,
                const DispatchCost& dispatch) const override {
    if (!ring_fits(geometry_, input))
      return plan_taps_conv(rows_, geometry_, input, threads, dispatch);
    const DepthwiseSizes sizes(geometry_, input);
    return plan_evenly(work_of(sizes, input, strips_for(sizes, input, threads)), threads, dispatch);
  }

  LayoutInfo info() const override {
    const double padding = static_cast<double>(packed_.size()) /
                           static_cast<double>(rows_.values.size() + rows_.bias.size());
    return {rows_.bytes() + static_cast<int64_t>(packed_.size() * sizeof(float)), padding, 0.0};
  }

  bool holds(const CondensedView& view, const ConvGeometry& geometry) const override {
    return geometry == geometry_ && rows_.hold(view);
  }

 private:
  // Parts of an image: more than one if there are too few channels for all threads.
  int64_t strips_for(const DepthwiseSizes& sizes, const ConvInput& input, size_t threads) const {
    const int64_t image_blocks = input.batch * divide_up(geometry_.out_channels, ops_.lanes);
    const int64_t wanted = 4 * static_cast<int64_t>(threads);
    if (threads == 1 || image_blocks >= wanted) return 1;
    return std::clamp<int64_t>(divide_up(wanted, image_blocks), 1, divide_up(sizes.height, 8));
  }

  EvenWork work_of(const DepthwiseSizes& sizes, const ConvInput& input, int64_t strips) const {
    const int64_t image_blocks = input.batch * divide_up(geometry_.out_channels, ops_.lanes);
    return {static_cast<double>(image_blocks * ops_.lanes * sizes.height * sizes.width) *
                (static_cast<double>(geometry_.taps()) * kMicrosecondsPerTapPixel +
                 kMicrosecondsPerPixel),
            static_cast<size_t>(image_blocks * strips)};
  }

  // Offsets of a thread's arrays.
  struct Plan {
    size_t ring, stage, sums, taps, total;

    Plan(const DepthwiseSizes& sizes, const ConvInput& input, const ConvGeometry& geometry,
         int64_t lanes) {
      const auto floats = [lanes](int64_t pixels) {
        return static_cast<size_t>(pixels * lanes) * sizeof(float);
      };
      ScratchPlan plan;
      ring = plan.add(floats((sizes.slots + 1) * sizes.columns));  // one row of zeros
      stage = plan.add(floats(sizes.fill_rows * input.width + 1));
      sums = plan.add(floats(sizes.drain_rows * sizes.width));
      taps = plan.add(static_cast<size_t>(geometry.taps()) * sizeof(const float*));
      total = plan.total();
    }
  };

  struct Run {
    const DepthwiseSizes& sizes;
    const ConvInput& input;
    const Plan& plan;
    const float* x;
    float* y;
    const ConvEpilogue& epilogue;
  };

  // Output rows [first, last) of a block of channels.
  void run_block(const Run& run, int64_t image, int64_t block, int64_t first, int64_t last,
                 uint8_t* scratch) const {
    const DepthwiseSizes& sizes = run.sizes;
    const int64_t lanes = ops_.lanes, taps = geometry_.taps();
    const int64_t channels = std::min(lanes, geometry_.out_channels - block * lanes);
    const int64_t channel = image * geometry_.out_channels + block * lanes;
    const float* from = run.x + channel * run.input.height * run.input.width;
    auto* ring = reinterpret_cast<float*>(scratch + run.plan.ring);
    auto* sums = reinterpret_cast<float*>(scratch + run.plan.sums);
    auto* pixels = reinterpret_cast<const float**>(scratch + run.plan.taps);
    // Zeros around the image are never overwritten.
    std::fill(ring, ring + (sizes.slots + 1) * sizes.columns * lanes, 0.0f);

    const float* weights = packed_.data() + block * (taps + 1) * lanes;
    const ConvEpilogue& epilogue = run.epilogue;
    const bool adds = epilogue.residual != nullptr;
    DepthwiseRow row{pixels,
                     weights + lanes,
                     weights,
                     taps,
                     geometry_.strides[1] * lanes,
                     sizes.width,
                     sums,
                     epilogue.clip_min,
                     epilogue.clip_max,
                     !epilogue.gate.open(),
                     epilogue.gate.scale,
                     epilogue.gate.shift};
    const ConvEpilogue open;
    if (adds) {  // before the clip
      row.clip_min = open.clip_min;
      row.clip_max = open.clip_max;
      row.gated = false;
    }
    int64_t filled = first * geometry_.strides[0];
    int64_t slot = filled % sizes.slots;  // of the window's first row
    const int64_t slot_step = geometry_.strides[0] % sizes.slots;
    for (int64_t i = first; i < last;) {
      const int64_t batch = std::min(sizes.drain_rows, last - i);
      for (int64_t r = 0; r < batch; ++r) {
        const int64_t top = (i + r) * geometry_.strides[0];
        if (filled < top + sizes.reach) {
          filled = std::max(filled, top);
          const int64_t to = std::min(sizes.padded, top + sizes.slots);
          fill(run, from, channels, filled, to, ring, scratch);
          filled = to;
        }
        find_taps(sizes, top, slot, ring, pixels);
        slot += slot_step;
        if (slot >= sizes.slots) slot -= sizes.slots;
        row.sums = sums + r * sizes.width * lanes;
        ops_.sum(row);
      }
      leave(run, channel, channels, i, batch, sums);
      i += batch;
    }
  }

  // Transposes padded rows [first, last) into their slots of the ring buffer.
  void fill(const Run& run, const float* from, int64_t channels, int64_t first, int64_t last,
            float* ring, uint8_t* scratch) const {
    const DepthwiseSizes& sizes = run.sizes;
    const int64_t lanes = ops_.lanes, width = run.input.width;
    if (width == 0) return;  // padding alone: the ring is zeros already
    auto* stage = reinterpret_cast<float*>(scratch + run.plan.stage);
    const int64_t begin = std::max<int64_t>(first - geometry_.pads[0], 0);
    const int64_t end = std::min(last - geometry_.pads[0], run.input.height);
    int64_t slot = (begin + geometry_.pads[0]) % sizes.slots;
    for (int64_t row = begin; row < end;) {
      const int64_t rows = std::min(sizes.fill_rows, end - row);
      ops_.panel.fill(from + row * width, run.input.height * width, static_cast<int>(channels),
                      rows * width, ops_.lanes, stage);
      for (int64_t r = 0; r < rows; ++r, ++row) {
        const float* staged = stage + (1 + r * width) * lanes;  // behind a column of zeros
        std::copy(staged, staged + width * lanes,
                  ring + (slot * sizes.columns + geometry_.pads[1]) * lanes);
        if (++slot == sizes.slots) slot = 0;
      }
    }
  }

  // The pixels that the taps of an output row's first pixel read. Without divisions: one per row
  // took a third of the time of images of 7 x 7.
  void find_taps(const DepthwiseSizes& sizes, int64_t top, int64_t first_slot, const float* ring,
                 const float** pixels) const {
    const int64_t lanes = ops_.lanes;
    for (int64_t k = 0; k < geometry_.kernel[0]; ++k) {
      const int64_t below = k * geometry_.dilations[0];
      const int64_t row = top + below - geometry_.pads[0];
      const bool inside = row >= 0 && row < sizes.image_rows;
      int64_t slot = first_slot + below;  // the window is at most as long as the ring
      if (slot >= sizes.slots) slot -= sizes.slots;
      if (!inside) slot = sizes.slots;
      for (int64_t l = 0; l < geometry_.kernel[1]; ++l)
        *pixels++ = ring + (slot * sizes.columns + l * geometry_.dilations[1]) * lanes;
    }
  }

  void leave(const Run& run, int64_t channel, int64_t channels, int64_t first, int64_t rows,
             const float* sums) const {
    const int64_t pixels = run.sizes.height * run.sizes.width;
    const int64_t at = channel * pixels + first * run.sizes.width;
    const ConvEpilogue& epilogue = run.epilogue;
    const bool adds = epilogue.residual != nullptr;
    const ConvEpilogue open;
    ops_.panel.drain(
        sums, rows * run.sizes.width, ops_.lanes, static_cast<int>(channels),
        {run.y + at, adds ? epilogue.residual + at : nullptr, pixels,
         adds ? epilogue.clip_min : open.clip_min, adds ? epilogue.clip_max : open.clip_max});
    if (!adds || epilogue.gate.open()) return;
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t p = 0; p < rows * run.sizes.width; ++p) {
        float& value = run.y[at + c * pixels + p];
        value = epilogue.gate.apply(value);
      }
  }

  const DepthwiseConvOps& ops_;
  ConvGeometry geometry_;
  ConvRows rows_;
  AlignedBuffer<float> packed_;  // [blocks][bias, then taps][lanes]
};

}  // namespace

bool is_whole_depthwise(const CondensedView& view, const ConvGeometry& geometry) {
  if (geometry.group_inputs() != 1 || geometry.group_outputs() != 1) return false;
  if (view.active != view.out_features || view.fan_in < view.in_features) return false;
  for (int64_t i = 0; i < view.active; ++i)
    if (view.true_fan_in(i) != view.in_features) return false;
  return true;
}

std::unique_ptr<ConvKernel> pack_depthwise_conv(const CondensedView& view,
                                                const ConvGeometry& geometry,
                                                const DepthwiseConvOps& ops) {
  if (!is_whole_depthwise(view, geometry))
    throw std::invalid_argument("the kernel is for depthwise convolutions with whole filters only");
  return std::make_unique<DepthwiseConv>(view, geometry, ops);
}

}  // namespace fanin
