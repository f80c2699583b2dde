#include "kernels/direct_conv.h"

#include <algorithm>
#include <vector>

#include "core/divide_up.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "kernels/taps_conv.h"

namespace fanin {
namespace {

// Cascade Lake: a tap is a multiply-add of a vector that mostly crosses cache lines; a pixel is
// copied once and written once.
constexpr double kMicrosecondsPerTapPixel = 4e-5;
constexpr double kMicrosecondsPerPixel = 4e-4;

// PaddedChannels of a strip: they share L1 with input and output.
constexpr int64_t kStripFloats = 6144;

// Beyond it, a padded row takes more memory than padding in advance is worth.
constexpr double kMaxStripFloats = 1 << 22;
constexpr int64_t kMaxStride = 16;

// Pixels of a channel that all filters read before the next: those of 16 channels fit L2.
constexpr int64_t kPointwisePixels = 2048;

// The least, if several threads share an image.
constexpr int64_t kMinPointwisePixels = 256;

// Whether padded channels of a reasonable size are enough for an output row: strides and pads may
// be huge.
bool padding_fits(const ConvGeometry& geometry, const ConvInput& input) {
  if (std::max(geometry.strides[0], geometry.strides[1]) > kMaxStride) return false;
  const int64_t reach = geometry.dilations[0] * (geometry.kernel[0] - 1) + geometry.strides[0];
  const int64_t columns = input.width + geometry.pads[1] + geometry.pads[3] + geometry.strides[1];
  return static_cast<double>(geometry.group_inputs()) * static_cast<double>(reach) *
             static_cast<double>(columns) <=
         kMaxStripFloats;
}

// The padded channels of a strip of output rows. With strides, the rows and columns of a channel
// are split into strides[0] x strides[1] phases, so that a tap's pixels for neighboring sums are
// neighbors in one of them. The rows of all phases are aligned to vectors.
class PaddedChannels {
 public:
  PaddedChannels(const ConvGeometry& geometry, const ConvInput& input, int lanes)
      : geometry_(geometry),
        input_(input),
        height_(geometry.output_size(0, input.height)),
        width_(geometry.output_size(1, input.width)),
        reach_(geometry.dilations[0] * (geometry.kernel[0] - 1) + 1) {
    const int64_t left = geometry.pads[1], right = geometry.pads[3];
    // Without a stride, the zeros after a row are also those before the next one.
    const bool shares = geometry.strides[1] == 1;
    const int64_t columns = input.width + (shares ? std::max(left, right) : left + right);
    pitch_ = divide_up(std::max(divide_up(columns, geometry.strides[1]), width_), lanes) * lanes;
    const auto floats = [&](int64_t rows) {
      return geometry.group_inputs() * geometry.strides[1] * pitch_ *
             ((rows - 1) * geometry.strides[0] + reach_);
    };
    rows_ = height_;
    if (floats(rows_) > kStripFloats) {
      const int64_t each = floats(2) - floats(1);
      rows_ = std::clamp<int64_t>((kStripFloats - floats(1)) / each + 1, 1, height_);
      rows_ = divide_up(height_, divide_up(height_, rows_));  // strips of about the same size
    }
    phase_rows_ = divide_up((rows_ - 1) * geometry.strides[0] + reach_, geometry.strides[0]);
    phase_ = phase_rows_ * pitch_;
    channel_ = geometry.strides[0] * geometry.strides[1] * phase_;
    floats_ = geometry.group_inputs() * channel_ + pitch_ + 9 * lanes;
    for (int64_t place = 0; place < geometry.group_inputs() * geometry.taps(); ++place) {
      const ConvTap tap = conv_tap(geometry, place);
      offsets_.push_back(tap.channel * channel_ + offset_of(tap.row, tap.column));
    }
  }

  int64_t strips() const { return divide_up(height_, rows_); }
  int64_t first_row(int64_t strip) const { return strip * rows_; }
  int64_t rows(int64_t strip) const { return std::min(rows_, height_ - strip * rows_); }
  int64_t pixels() const { return height_ * width_; }
  int64_t width() const { return width_; }
  int64_t pitch() const { return pitch_; }
  int64_t floats() const { return floats_; }
  const int64_t* offsets() const { return offsets_.data(); }

  // Copies the group's channels for a strip. Columns outside the image are zeroed once; no strip
  // writes to them.
  void fill(const float* x, int64_t strip, const DirectConvOps& ops, float* padded) const {
    const int64_t first = first_row(strip) * geometry_.strides[0] - geometry_.pads[0];
    const int64_t end = first + (rows(strip) - 1) * geometry_.strides[0] + reach_;
    for (int64_t c = 0; c < geometry_.group_inputs(); ++c)
      for (int64_t phase = 0; phase < geometry_.strides[0]; ++phase)
        fill_rows(x + c * input_.height * input_.width, first, end, phase, ops,
                  padded + c * channel_);
  }

 private:
  int64_t offset_of(int64_t row, int64_t column) const {
    const int64_t phase =
        row % geometry_.strides[0] * geometry_.strides[1] + column % geometry_.strides[1];
    return phase * phase_ + row / geometry_.strides[0] * pitch_ + column / geometry_.strides[1];
  }

  // Copies every strides[0]-th of the padded rows [first, end), from first + phase on.
  void fill_rows(const float* channel, int64_t first, int64_t end, int64_t phase,
                 const DirectConvOps& ops, float* padded) const {
    const int64_t step = geometry_.strides[0];
    const int64_t count = divide_up(end - first - phase, step);
    const auto number = [&](int64_t row) {  // of the first row from `row` on
      return std::clamp<int64_t>(row <= first + phase ? 0 : divide_up(row - first - phase, step), 0,
                                 std::max<int64_t>(count, 0));
    };
    const int64_t begin = number(0), stop = std::max(begin, number(input_.height));
    for (int64_t column = 0; column < geometry_.strides[1]; ++column) {
      float* row = padded + offset_of(phase, column);
      std::fill(row, row + begin * pitch_, 0.0f);
      std::fill(row + stop * pitch_, row + std::max(stop, count) * pitch_, 0.0f);
    }
    if (begin == stop) return;
    const float* from = channel + (first + phase + begin * step) * input_.width;
    copy_rows({from, step * input_.width, stop - begin, input_.width, nullptr, nullptr, pitch_},
              padded + begin * pitch_, phase, ops);
  }

  void copy_rows(PaddedRows rows, float* padded, int64_t phase, const DirectConvOps& ops) const {
    const int64_t left = geometry_.pads[1], step = geometry_.strides[1];
    rows.to = padded + offset_of(phase, left);
    if (step == 1) return ops.copy(rows);
    if (step == 2) {
      rows.odd = padded + offset_of(phase, left + 1);
      return ops.split(rows);
    }
    for (int64_t c = 0; c < rows.width; ++c) {
      float* to = padded + offset_of(phase, left + c);
      for (int64_t i = 0; i < rows.rows; ++i)
        to[i * rows.to_stride] = rows.from[i * rows.from_stride + c];
    }
  }

  const ConvGeometry& geometry_;
  const ConvInput& input_;
  int64_t height_;  // of the output
  int64_t width_;
  int64_t reach_;       // rows of the window
  int64_t pitch_;       // from one row of a phase to the next
  int64_t rows_;        // of the output, in a strip
  int64_t phase_rows_;  // of a phase
  int64_t phase_;       // floats of a phase
  int64_t channel_;     // of all phases of a channel
  int64_t floats_;      // of all channels
  std::vector<int64_t> offsets_;
};

class DirectConv final : public ConvKernel {
 public:
  DirectConv(const CondensedView& view, const ConvGeometry& geometry, const DirectConvOps& ops)
      : ops_(ops), geometry_(geometry), rows_(view) {}

  void run(const float* x, const ConvInput& input, float* y, const ConvEpilogue& epilogue,
           const Executor& executor) const override {
    if (geometry_.is_pointwise()) return run_pointwise(x, input, y, epilogue, executor);
    if (!padding_fits(geometry_, input))
      return run_taps_conv(rows_, geometry_, x, input, y, epilogue, executor);
    const PaddedChannels channels(geometry_, input, ops_.lanes);
    const int64_t strips = channels.strips();
    const EvenWork work = work_of(channels, input);
    const size_t units = work.parts, chunks = chunk_count(executor, work);
    ScratchPlan plan;
    plan.add(static_cast<size_t>(channels.floats()) * sizeof(float));
    uint8_t* scratch = thread_scratch(plan.total() * chunks);
    auto body = [&](size_t chunk) {
      float* mine = reinterpret_cast<float*>(scratch + chunk * plan.total());
      std::fill(mine, mine + channels.floats(), 0.0f);
      const size_t end = chunk_begin(units, chunks, chunk + 1);
      for (size_t unit = chunk_begin(units, chunks, chunk); unit < end; ++unit) {
        const int64_t image_group = static_cast<int64_t>(unit) / strips;
        const int64_t strip = static_cast<int64_t>(unit) % strips;
        const int64_t channel = image_group * geometry_.group_inputs();
        channels.fill(x + channel * input.height * input.width, strip, ops_, mine);
        run_strip(channels, image_group, strip, mine, y, epilogue);
      }
    };
    run_chunks(executor, chunks, body);
  }

  WorkPlan plan(const ConvInput& input, size_t threads,
                const DispatchCost& dispatch) const override {
    if (geometry_.is_pointwise())
      return plan_evenly(pointwise_work(input, pointwise_strip(input, threads)), threads, dispatch);
    if (!padding_fits(geometry_, input))
      return plan_taps_conv(rows_, geometry_, input, threads, dispatch);
    const PaddedChannels channels(geometry_, input, ops_.lanes);
    return plan_evenly(work_of(channels, input), threads, dispatch);
  }

  LayoutInfo info() const override { return {rows_.bytes(), 1.0, 0.0}; }

  bool holds(const CondensedView& view, const ConvGeometry& geometry) const override {
    return geometry == geometry_ && rows_.hold(view);
  }

 private:
  EvenWork work_of(const PaddedChannels& padded, const ConvInput& input) const {
    const int64_t channels = geometry_.out_channels + geometry_.in_channels;
    return {(static_cast<double>(rows_.values.size()) * kMicrosecondsPerTapPixel +
             static_cast<double>(channels) * kMicrosecondsPerPixel) *
                static_cast<double>(input.batch * padded.pixels()),
            static_cast<size_t>(input.batch * geometry_.group * padded.strips())};
  }

  // Pixels of a strip: fewer if each thread would otherwise have less than four strips.
  int64_t pointwise_strip(const ConvInput& input, size_t threads) const {
    if (threads == 1) return kPointwisePixels;
    const int64_t pixels = input.height * input.width;
    const int64_t wanted =
        divide_up(4 * static_cast<int64_t>(threads), input.batch * geometry_.group);
    const int64_t strips = std::clamp<int64_t>(
        wanted, divide_up(pixels, kPointwisePixels),
        std::max<int64_t>(divide_up(pixels, kPointwisePixels), pixels / kMinPointwisePixels));
    return divide_up(divide_up(pixels, strips), 16) * 16;
  }

  EvenWork pointwise_work(const ConvInput& input, int64_t strip) const {
    const int64_t pixels = input.height * input.width;
    return {(static_cast<double>(rows_.values.size()) * kMicrosecondsPerTapPixel +
             static_cast<double>(geometry_.out_channels) * kMicrosecondsPerPixel) *
                static_cast<double>(input.batch * pixels),
            static_cast<size_t>(input.batch * geometry_.group * divide_up(pixels, strip))};
  }

  void run_pointwise(const float* x, const ConvInput& input, float* y, const ConvEpilogue& epilogue,
                     const Executor& executor) const {
    const int64_t pixels = input.height * input.width;
    const int64_t strip = pointwise_strip(input, executor.concurrency());
    const int64_t strips = divide_up(pixels, strip);
    const EvenWork work = pointwise_work(input, strip);
    const size_t units = work.parts, chunks = chunk_count(executor, work);
    std::vector<int64_t> offsets(static_cast<size_t>(geometry_.group_inputs()));
    for (size_t c = 0; c < offsets.size(); ++c) offsets[c] = static_cast<int64_t>(c) * pixels;
    auto body = [&](size_t chunk) {
      const size_t end = chunk_begin(units, chunks, chunk + 1);
      for (size_t unit = chunk_begin(units, chunks, chunk); unit < end; ++unit) {
        const int64_t image_group = static_cast<int64_t>(unit) / strips;
        const int64_t first = static_cast<int64_t>(unit) % strips * strip;
        const int64_t count = std::min(strip, pixels - first);
        const float* from = x + image_group * geometry_.group_inputs() * pixels + first;
        for (int64_t o = 0; o < geometry_.group_outputs(); ++o) {
          const size_t row =
              static_cast<size_t>(image_group % geometry_.group * geometry_.group_outputs() + o);
          const int64_t at = (image_group * geometry_.group_outputs() + o) * pixels + first;
          ops_.sum_in_place(
              from, taps(row, offsets.data()), rows_.bias[row],
              output(y, at, 1, count, divide_up(count, ops_.lanes) * ops_.lanes, epilogue));
        }
      }
    };
    run_chunks(executor, chunks, body);
  }

  FilterTaps taps(size_t row, const int64_t* offsets) const {
    const size_t at = rows_.starts[row];
    return {rows_.values.data() + at, rows_.indices.data() + at, offsets,
            rows_.starts[row + 1] - at};
  }

  static FilterOutput output(float* y, int64_t at, int64_t rows, int64_t width, int64_t pitch,
                             const ConvEpilogue& epilogue) {
    return {y + at,
            epilogue.residual ? epilogue.residual + at : nullptr,
            rows,
            width,
            pitch,
            epilogue.clip_min,
            epilogue.clip_max,
            !epilogue.gate.open(),
            epilogue.gate.scale,
            epilogue.gate.shift};
  }

  // The filters of one group of one image.
  void run_strip(const PaddedChannels& channels, int64_t image_group, int64_t strip,
                 const float* filled, float* y, const ConvEpilogue& epilogue) const {
    const int64_t outputs = geometry_.group_outputs();
    for (int64_t o = 0; o < outputs; ++o) {
      const size_t row = static_cast<size_t>(image_group % geometry_.group * outputs + o);
      const int64_t first = (image_group * outputs + o) * channels.pixels() +
                            channels.first_row(strip) * channels.width();
      ops_.sum(
          filled, taps(row, channels.offsets()), rows_.bias[row],
          output(y, first, channels.rows(strip), channels.width(), channels.pitch(), epilogue));
    }
  }

  const DirectConvOps& ops_;
  ConvGeometry geometry_;
  ConvRows rows_;
};

}  // namespace

std::unique_ptr<ConvKernel> pack_direct_conv(const CondensedView& view,
                                             const ConvGeometry& geometry,
                                             const DirectConvOps& ops) {
  return std::make_unique<DirectConv>(view, geometry, ops);
}

}  // namespace fanin
