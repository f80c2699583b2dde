#include "kernels/conv_planes.h"

#include <algorithm>
#include <vector>

#include "core/parallel.h"
#include "core/scratch.h"
#include "kernels/conv_taps.h"

namespace fanin {
namespace {

// Cascade Lake: a tap is a multiply-add of a vector that mostly crosses cache lines; a pixel is
// copied and leaves.
constexpr double kMicrosecondsPerTapPixel = 4e-5;
constexpr double kMicrosecondsPerPixel = 4e-4;

// Planes of a strip: they share L1 with what comes and goes.
constexpr int64_t kStripFloats = 6144;

// Beyond it, a row of the window takes more memory than padding in advance is worth.
constexpr double kMaxStripFloats = 1 << 22;
constexpr int64_t kMaxStride = 16;

// Pixels of a channel that all filters read before the next: those of 16 channels fit L2.
constexpr int64_t kPointwisePixels = 2048;

// Few channels are padded in no time, and all filters of the group read them from L1. (Other limits
// were not tried: networks have 1, 3 or 4 channels, or 16 and more.)
constexpr int64_t kMaxInputs = 4;
constexpr int64_t kMaxPointwiseFanIn = 8;
constexpr int64_t kMaxLargeTaps = 9;

bool is_pointwise(const ConvGeometry& geometry) {
  const auto all = [](const int64_t* first, int count, int64_t wanted) {
    return std::all_of(first, first + count, [wanted](int64_t size) { return size == wanted; });
  };
  return all(geometry.kernel, 2, 1) && all(geometry.strides, 2, 1) && all(geometry.pads, 4, 0);
}

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Whether planes of a reasonable size hold at least one output row: strides and pads may be huge.
bool planes_fit(const ConvGeometry& geometry, const ConvInput& input) {
  if (std::max(geometry.strides[0], geometry.strides[1]) > kMaxStride) return false;
  const int64_t reach = geometry.dilations[0] * (geometry.kernel[0] - 1) + geometry.strides[0];
  const int64_t columns = input.width + geometry.pads[1] + geometry.pads[3] + geometry.strides[1];
  return static_cast<double>(geometry.group_inputs()) * static_cast<double>(reach) *
             static_cast<double>(columns) <=
         kMaxStripFloats;
}

// How a strip of output rows lies in memory. A channel's padded rows and columns are dealt out to
// strides[0] x strides[1] planes, so that a tap's pixels for neighbouring sums are neighbours in
// one of them. The rows of all planes begin with a vector.
class Planes {
 public:
  Planes(const ConvGeometry& geometry, const ConvInput& input, int lanes)
      : geometry_(geometry),
        input_(input),
        height_(geometry.output_size(0, input.height)),
        width_(geometry.output_size(1, input.width)),
        reach_(geometry.dilations[0] * (geometry.kernel[0] - 1) + 1) {
    const int64_t left = geometry.pads[1], right = geometry.pads[3];
    // Without a stride, the zeros behind a row are those before the next one.
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
    planes_ = geometry.group_inputs() * channel_ + pitch_ + 9 * lanes;
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
  int64_t planes_floats() const { return planes_; }
  const int64_t* offsets() const { return offsets_.data(); }

  // Fills the planes of a strip from the group's channels. Columns outside the image hold zeros
  // from the beginning; no strip writes to them.
  void fill(const float* x, int64_t strip, const ConvPlaneOps& ops, float* planes) const {
    const int64_t first = first_row(strip) * geometry_.strides[0] - geometry_.pads[0];
    const int64_t end = first + (rows(strip) - 1) * geometry_.strides[0] + reach_;
    for (int64_t c = 0; c < geometry_.group_inputs(); ++c)
      for (int64_t phase = 0; phase < geometry_.strides[0]; ++phase)
        fill_rows(x + c * input_.height * input_.width, first, end, phase, ops,
                  planes + c * channel_);
  }

 private:
  int64_t offset_of(int64_t row, int64_t column) const {
    const int64_t phase =
        row % geometry_.strides[0] * geometry_.strides[1] + column % geometry_.strides[1];
    return phase * phase_ + row / geometry_.strides[0] * pitch_ + column / geometry_.strides[1];
  }

  // Every strides[0]-th of the padded rows [first, end), from the one of that number on.
  void fill_rows(const float* channel, int64_t first, int64_t end, int64_t phase,
                 const ConvPlaneOps& ops, float* planes) const {
    const int64_t step = geometry_.strides[0];
    const int64_t count = divide_up(end - first - phase, step);
    const auto number = [&](int64_t row) {  // of the first row from `row` on
      return std::clamp<int64_t>(row <= first + phase ? 0 : divide_up(row - first - phase, step), 0,
                                 std::max<int64_t>(count, 0));
    };
    const int64_t begin = number(0), stop = std::max(begin, number(input_.height));
    for (int64_t column = 0; column < geometry_.strides[1]; ++column) {
      float* plane = planes + offset_of(phase, column);
      std::fill(plane, plane + begin * pitch_, 0.0f);
      std::fill(plane + stop * pitch_, plane + std::max(stop, count) * pitch_, 0.0f);
    }
    if (begin == stop) return;
    const float* from = channel + (first + phase + begin * step) * input_.width;
    copy_rows({from, step * input_.width, stop - begin, input_.width, nullptr, nullptr, pitch_},
              planes + begin * pitch_, phase, ops);
  }

  void copy_rows(PlaneRows rows, float* planes, int64_t phase, const ConvPlaneOps& ops) const {
    const int64_t left = geometry_.pads[1], step = geometry_.strides[1];
    rows.to = planes + offset_of(phase, left);
    if (step == 1) return ops.copy(rows);
    if (step == 2) {
      rows.odd = planes + offset_of(phase, left + 1);
      return ops.split(rows);
    }
    for (int64_t c = 0; c < rows.width; ++c) {
      float* to = planes + offset_of(phase, left + c);
      for (int64_t i = 0; i < rows.rows; ++i)
        to[i * rows.to_stride] = rows.from[i * rows.from_stride + c];
    }
  }

  const ConvGeometry& geometry_;
  const ConvInput& input_;
  int64_t height_;  // of the output
  int64_t width_;
  int64_t reach_;       // rows of the window
  int64_t pitch_;       // from one row of a plane to the next
  int64_t rows_;        // of the output, in a strip
  int64_t phase_rows_;  // of a plane
  int64_t phase_;       // floats of a plane
  int64_t channel_;     // of all planes of a channel
  int64_t planes_;
  std::vector<int64_t> offsets_;
};

class ConvPlanes final : public ConvKernel {
 public:
  ConvPlanes(const CondensedView& view, const ConvGeometry& geometry, const ConvPlaneOps& ops)
      : ops_(ops), geometry_(geometry), rows_(view) {}

  void run(const float* x, const ConvInput& input, float* y, const ConvEpilogue& epilogue,
           const Executor& executor) const override {
    if (is_pointwise(geometry_)) return run_pointwise(x, input, y, epilogue, executor);
    if (!planes_fit(geometry_, input))
      return run_conv_taps(rows_, geometry_, x, input, y, epilogue, executor);
    const Planes planes(geometry_, input, ops_.lanes);
    const int64_t strips = planes.strips();
    const EvenWork work = work_of(planes, input);
    const size_t units = work.parts, chunks = chunk_count(executor, work);
    ScratchPlan plan;
    plan.add(static_cast<size_t>(planes.planes_floats()) * sizeof(float));
    uint8_t* scratch = thread_scratch(plan.total() * chunks);
    auto body = [&](size_t chunk) {
      float* mine = reinterpret_cast<float*>(scratch + chunk * plan.total());
      std::fill(mine, mine + planes.planes_floats(), 0.0f);
      const size_t end = chunk_begin(units, chunks, chunk + 1);
      for (size_t unit = chunk_begin(units, chunks, chunk); unit < end; ++unit) {
        const int64_t image_group = static_cast<int64_t>(unit) / strips;
        const int64_t strip = static_cast<int64_t>(unit) % strips;
        const int64_t channel = image_group * geometry_.group_inputs();
        planes.fill(x + channel * input.height * input.width, strip, ops_, mine);
        run_strip(planes, image_group, strip, mine, y, epilogue);
      }
    };
    run_chunks(executor, chunks, body);
  }

  WorkPlan plan(const ConvInput& input, size_t threads,
                const DispatchCost& dispatch) const override {
    if (is_pointwise(geometry_)) return plan_evenly(pointwise_work(input), threads, dispatch);
    if (!planes_fit(geometry_, input))
      return plan_conv_taps(rows_, geometry_, input, threads, dispatch);
    const Planes planes(geometry_, input, ops_.lanes);
    return plan_evenly(work_of(planes, input), threads, dispatch);
  }

  LayoutInfo info() const override { return {rows_.bytes(), 1.0, 0.0}; }

  bool holds(const CondensedView& view, const ConvGeometry& geometry) const override {
    return geometry == geometry_ && rows_.hold(view);
  }

 private:
  EvenWork work_of(const Planes& planes, const ConvInput& input) const {
    const int64_t channels = geometry_.out_channels + geometry_.in_channels;
    return {(static_cast<double>(rows_.values.size()) * kMicrosecondsPerTapPixel +
             static_cast<double>(channels) * kMicrosecondsPerPixel) *
                static_cast<double>(input.batch * planes.pixels()),
            static_cast<size_t>(input.batch * geometry_.group * planes.strips())};
  }

  EvenWork pointwise_work(const ConvInput& input) const {
    const int64_t pixels = input.height * input.width;
    return {
        (static_cast<double>(rows_.values.size()) * kMicrosecondsPerTapPixel +
         static_cast<double>(geometry_.out_channels) * kMicrosecondsPerPixel) *
            static_cast<double>(input.batch * pixels),
        static_cast<size_t>(input.batch * geometry_.group * divide_up(pixels, kPointwisePixels))};
  }

  void run_pointwise(const float* x, const ConvInput& input, float* y, const ConvEpilogue& epilogue,
                     const Executor& executor) const {
    const int64_t pixels = input.height * input.width;
    const int64_t strips = divide_up(pixels, kPointwisePixels);
    const EvenWork work = pointwise_work(input);
    const size_t units = work.parts;
    std::vector<int64_t> offsets(static_cast<size_t>(geometry_.group_inputs()));
    for (size_t c = 0; c < offsets.size(); ++c) offsets[c] = static_cast<int64_t>(c) * pixels;
    auto body = [&](size_t chunk, size_t chunks) {
      const size_t end = chunk_begin(units, chunks, chunk + 1);
      for (size_t unit = chunk_begin(units, chunks, chunk); unit < end; ++unit) {
        const int64_t image_group = static_cast<int64_t>(unit) / strips;
        const int64_t first = static_cast<int64_t>(unit) % strips * kPointwisePixels;
        const int64_t count = std::min(kPointwisePixels, pixels - first);
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
    const size_t chunks = chunk_count(executor, work);
    auto chunked = [&](size_t chunk) { body(chunk, chunks); };
    run_chunks(executor, chunks, chunked);
  }

  PlaneTaps taps(size_t row, const int64_t* offsets) const {
    const size_t at = rows_.starts[row];
    return {rows_.values.data() + at, rows_.indices.data() + at, offsets,
            rows_.starts[row + 1] - at};
  }

  static PlaneOutput output(float* y, int64_t at, int64_t rows, int64_t width, int64_t pitch,
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
  void run_strip(const Planes& planes, int64_t image_group, int64_t strip, const float* filled,
                 float* y, const ConvEpilogue& epilogue) const {
    const int64_t outputs = geometry_.group_outputs();
    for (int64_t o = 0; o < outputs; ++o) {
      const size_t row = static_cast<size_t>(image_group % geometry_.group * outputs + o);
      const int64_t first =
          (image_group * outputs + o) * planes.pixels() + planes.first_row(strip) * planes.width();
      ops_.sum(filled, taps(row, planes.offsets()), rows_.bias[row],
               output(y, first, planes.rows(strip), planes.width(), planes.pitch(), epilogue));
    }
  }

  const ConvPlaneOps& ops_;
  ConvGeometry geometry_;
  ConvRows rows_;
};

}  // namespace

bool suits_planes(const CondensedView&, const ConvGeometry& geometry) {
  return geometry.group_inputs() <= kMaxInputs;
}

bool suits_large_planes(const CondensedView& view, const ConvGeometry& geometry) {
  if (is_pointwise(geometry)) return view.fan_in <= kMaxPointwiseFanIn;
  return geometry.group_inputs() == 1 && geometry.taps() <= kMaxLargeTaps &&
         geometry.strides[0] == 1 && geometry.strides[1] == 1;
}

std::unique_ptr<ConvKernel> pack_conv_planes(const CondensedView& view,
                                             const ConvGeometry& geometry,
                                             const ConvPlaneOps& ops) {
  return std::make_unique<ConvPlanes>(view, geometry, ops);
}

}  // namespace fanin
