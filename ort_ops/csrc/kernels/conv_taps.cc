#include "kernels/conv_taps.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/parallel.h"
#include "core/scratch.h"
#include "kernels/source_row.h"

namespace fanin {
namespace {

// A tap adds about a pixel per nanosecond: a load, a load and a store for four of them.
constexpr double kMicrosecondsPerTapPixel = 1e-3;

// ceil(a / b) for b > 0.
int64_t divide_up(int64_t a, int64_t b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }

void add_scaled(float* __restrict to, const float* __restrict from, int64_t count, float weight) {
  for (int64_t i = 0; i < count; ++i) to[i] += weight * from[i];
}

void add_scaled(float* __restrict to, const float* __restrict from, int64_t count, float weight,
                int64_t stride) {
  for (int64_t i = 0; i < count; ++i) to[i] += weight * from[i * stride];
}

class ConvTaps final : public ConvKernel {
 public:
  ConvTaps(const CondensedView& view, const ConvGeometry& geometry)
      : geometry_(geometry), bias_(view.bias, view.bias + view.out_features) {
    int64_t stored = 0;
    for (int64_t o = 0; o < view.out_features; ++o) {
      starts_.push_back(values_.size());
      if (stored == view.active || view.rows[stored] != o) continue;
      const int64_t entries = view.true_fan_in(stored);
      for (int64_t j = 0; j < entries; ++j) {
        values_.push_back(view.value(stored, j));
        indices_.push_back(static_cast<int32_t>(view.index(stored, j)));
      }
      ++stored;
    }
    starts_.push_back(values_.size());
  }

  void run(const float* x, const ConvInput& input, float* y, const Epilogue& epilogue,
           const Executor& executor) const override {
    const int64_t height = geometry_.output_size(0, input.height);
    const int64_t width = geometry_.output_size(1, input.width);
    const size_t planes = static_cast<size_t>(input.batch * geometry_.out_channels);
    const double work = static_cast<double>(values_.size() + bias_.size()) *
                        static_cast<double>(input.batch * height * width);
    const size_t chunks = chunk_count(executor, work * kMicrosecondsPerTapPixel, planes);
    // Sums of a row on their own: y may hold the residual.
    ScratchPlan plan;
    plan.add(static_cast<size_t>(width) * sizeof(float));
    uint8_t* scratch = thread_scratch(plan.total() * chunks);
    auto body = [&](size_t chunk) {
      float* sums = reinterpret_cast<float*>(scratch + chunk * plan.total());
      const size_t end = chunk_begin(planes, chunks, chunk + 1);
      for (size_t plane = chunk_begin(planes, chunks, chunk); plane < end; ++plane) {
        const int64_t n = static_cast<int64_t>(plane) / geometry_.out_channels;
        const int64_t o = static_cast<int64_t>(plane) % geometry_.out_channels;
        const int64_t channel =
            n * geometry_.in_channels + o / geometry_.group_outputs() * geometry_.group_inputs();
        const float* image = x + channel * input.height * input.width;
        for (int64_t i = 0; i < height; ++i) {
          const int64_t at = (static_cast<int64_t>(plane) * height + i) * width;
          run_row(image, input, o, i, width, sums);
          finish(sums, epilogue.residual ? epilogue.residual + at : nullptr, width, epilogue,
                 y + at);
        }
      }
    };
    run_chunks(executor, chunks, body);
  }

  LayoutInfo info() const override {
    const size_t bytes = values_.size() * (sizeof(float) + sizeof(int32_t)) +
                         starts_.size() * sizeof(size_t) + bias_.size() * sizeof(float);
    return {static_cast<int64_t>(bytes), 1.0, 0.0};
  }

  bool holds(const CondensedView& view, const ConvGeometry& geometry) const override {
    if (!(geometry == geometry_) || !same_bits(bias_, view.bias, view.out_features)) return false;
    int64_t stored = 0;
    for (int64_t o = 0; o < view.out_features; ++o) {
      const bool active = stored < view.active && view.rows[stored] == o;
      const int64_t count = active ? view.true_fan_in(stored) : 0;
      if (static_cast<int64_t>(starts_[o + 1] - starts_[o]) != count) return false;
      SourceRow row{stored, 0, count};
      for (size_t at = starts_[o]; at < starts_[o + 1]; ++at)
        if (!row.take(view, indices_[at], values_[at])) return false;
      stored += active;
    }
    return true;
  }

 private:
  // One row of one output channel, before residual and clip.
  void run_row(const float* image, const ConvInput& input, int64_t o, int64_t i, int64_t width,
               float* to) const {
    std::fill(to, to + width, bias_[o]);
    const int64_t stride = geometry_.strides[1];
    for (size_t at = starts_[o]; at < starts_[o + 1]; ++at) {
      const ConvTap tap = conv_tap(geometry_, indices_[at]);
      const int64_t row = i * geometry_.strides[0] - geometry_.pads[0] + tap.row;
      const int64_t left = tap.column - geometry_.pads[1];  // input column of the first pixel
      int64_t first = 0, end = 0;
      if (row >= 0 && row < input.height) {
        end = std::clamp<int64_t>(divide_up(input.width - left, stride), 0, width);
        first = std::clamp<int64_t>(divide_up(-left, stride), 0, end);
      }
      if (first < end) {
        const float* from =
            image + (tap.channel * input.height + row) * input.width + left + first * stride;
        if (stride == 1)
          add_scaled(to + first, from, end - first, values_[at]);
        else
          add_scaled(to + first, from, end - first, values_[at], stride);
      }
      if (std::isfinite(values_[at])) continue;
      // Zeros outside the image make NaN of it.
      for (int64_t j = 0; j < width; ++j)
        if (j < first || j >= end) to[j] += values_[at] * 0.0f;
    }
  }

  static void finish(float* sums, const float* residual, int64_t count, const Epilogue& epilogue,
                     float* to) {
    if (residual)
      for (int64_t j = 0; j < count; ++j) sums[j] += residual[j];
    for (int64_t j = 0; j < count; ++j) to[j] = epilogue.apply(sums[j]);
  }

  ConvGeometry geometry_;
  std::vector<float> bias_;
  std::vector<size_t> starts_;  // [out_channels + 1], an ablated output has none
  std::vector<float> values_;
  std::vector<int32_t> indices_;
};

}  // namespace

std::unique_ptr<ConvKernel> pack_conv_taps(const CondensedView& view, const ConvGeometry& geometry,
                                           const Executor&) {
  return std::make_unique<ConvTaps>(view, geometry);
}

}  // namespace fanin
