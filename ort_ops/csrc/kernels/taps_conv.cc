#include "kernels/taps_conv.h"

#include <algorithm>
#include <cmath>

#include "core/parallel.h"
#include "core/scratch.h"

namespace fanin {
namespace {

// A tap adds about a pixel per nanosecond: two loads and a store for four of them.
constexpr double kMicrosecondsPerTapPixel = 1e-3;

// a / b rounded up, for b > 0.
int64_t ceil_of(int64_t a, int64_t b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }

void add_scaled(float* __restrict to, const float* __restrict from, int64_t count, float weight) {
  for (int64_t i = 0; i < count; ++i) to[i] += weight * from[i];
}

void add_scaled(float* __restrict to, const float* __restrict from, int64_t count, float weight,
                int64_t stride) {
  for (int64_t i = 0; i < count; ++i) to[i] += weight * from[i * stride];
}

// Row i of output channel o, before residual and clip.
void run_row(const ConvRows& rows, const ConvGeometry& geometry, const float* image,
             const ConvInput& input, int64_t o, int64_t i, int64_t width, float* to) {
  std::fill(to, to + width, rows.bias[o]);
  const int64_t stride = geometry.strides[1];
  for (size_t at = rows.starts[o]; at < rows.starts[o + 1]; ++at) {
    const float value = rows.values[at];
    const ConvTap tap = conv_tap(geometry, rows.indices[at]);
    const int64_t row = i * geometry.strides[0] - geometry.pads[0] + tap.row;
    const int64_t left = tap.column - geometry.pads[1];  // input column of the first pixel
    int64_t first = 0, end = 0;
    if (row >= 0 && row < input.height) {
      end = std::clamp<int64_t>(ceil_of(input.width - left, stride), 0, width);
      first = std::clamp<int64_t>(ceil_of(-left, stride), 0, end);
    }
    if (first < end) {
      const float* from =
          image + (tap.channel * input.height + row) * input.width + left + first * stride;
      if (stride == 1)
        add_scaled(to + first, from, end - first, value);
      else
        add_scaled(to + first, from, end - first, value, stride);
    }
    if (std::isfinite(value)) continue;
    // Zeros outside the image turn it into NaN.
    for (int64_t j = 0; j < width; ++j)
      if (j < first || j >= end) to[j] += value * 0.0f;
  }
}

void finish(const float* sums, const float* residual, int64_t count, const ConvEpilogue& epilogue,
            float* y) {
  for (int64_t j = 0; j < count; ++j)
    y[j] = epilogue.apply(residual ? sums[j] + residual[j] : sums[j]);
}

EvenWork work_of(const ConvRows& rows, const ConvGeometry& geometry, const ConvInput& input) {
  const int64_t pixels =
      geometry.output_size(0, input.height) * geometry.output_size(1, input.width);
  return {static_cast<double>(rows.values.size() + rows.bias.size()) *
              static_cast<double>(input.batch * pixels) * kMicrosecondsPerTapPixel,
          static_cast<size_t>(input.batch * geometry.out_channels)};
}

class TapsConv final : public ConvKernel {
 public:
  TapsConv(const CondensedView& view, const ConvGeometry& geometry)
      : geometry_(geometry), rows_(view) {}

  void run(const float* x, const ConvInput& input, float* y, const ConvEpilogue& epilogue,
           const Executor& executor) const override {
    run_taps_conv(rows_, geometry_, x, input, y, epilogue, executor);
  }

  WorkPlan plan(const ConvInput& input, size_t threads,
                const DispatchCost& dispatch) const override {
    return plan_taps_conv(rows_, geometry_, input, threads, dispatch);
  }

  LayoutInfo info() const override { return {rows_.bytes(), 1.0, 0.0}; }

  bool holds(const CondensedView& view, const ConvGeometry& geometry) const override {
    return geometry == geometry_ && rows_.hold(view);
  }

 private:
  ConvGeometry geometry_;
  ConvRows rows_;
};

}  // namespace

std::unique_ptr<ConvKernel> pack_taps_conv(const CondensedView& view, const ConvGeometry& geometry,
                                           const Executor&) {
  return std::make_unique<TapsConv>(view, geometry);
}

WorkPlan plan_taps_conv(const ConvRows& rows, const ConvGeometry& geometry, const ConvInput& input,
                        size_t threads, const DispatchCost& dispatch) {
  return plan_evenly(work_of(rows, geometry, input), threads, dispatch);
}

void run_taps_conv(const ConvRows& rows, const ConvGeometry& geometry, const float* x,
                   const ConvInput& input, float* y, const ConvEpilogue& epilogue,
                   const Executor& executor) {
  const int64_t height = geometry.output_size(0, input.height);
  const int64_t width = geometry.output_size(1, input.width);
  const EvenWork work = work_of(rows, geometry, input);
  const size_t channels = work.parts, chunks = chunk_count(executor, work);
  // Sums of a row in a separate array, since y may be the residual.
  ScratchPlan plan;
  plan.add(static_cast<size_t>(width) * sizeof(float));
  uint8_t* scratch = thread_scratch(plan.total() * chunks);
  auto body = [&](size_t chunk) {
    float* sums = reinterpret_cast<float*>(scratch + chunk * plan.total());
    const size_t end = chunk_begin(channels, chunks, chunk + 1);
    for (size_t at_channel = chunk_begin(channels, chunks, chunk); at_channel < end; ++at_channel) {
      const int64_t n = static_cast<int64_t>(at_channel) / geometry.out_channels;
      const int64_t o = static_cast<int64_t>(at_channel) % geometry.out_channels;
      const int64_t channel =
          n * geometry.in_channels + o / geometry.group_outputs() * geometry.group_inputs();
      const float* image = x + channel * input.height * input.width;
      for (int64_t i = 0; i < height; ++i) {
        const int64_t at = (static_cast<int64_t>(at_channel) * height + i) * width;
        run_row(rows, geometry, image, input, o, i, width, sums);
        finish(sums, epilogue.residual ? epilogue.residual + at : nullptr, width, epilogue, y + at);
      }
    }
  };
  run_chunks(executor, chunks, body);
}

}  // namespace fanin
