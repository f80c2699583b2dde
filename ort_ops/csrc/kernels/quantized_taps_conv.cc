#include "kernels/quantized_taps_conv.h"

#include <algorithm>
#include <vector>

#include "core/divide_up.h"
#include "core/parallel.h"
#include "kernels/quantized_finish.h"
#include "kernels/quantized_images.h"
#include "kernels/source_row.h"

namespace fanin {
namespace {

// A load, a multiplication and an addition in memory that is in L1.
constexpr double kMicrosecondsPerProduct = 1e-3;

// Sums of so many pixels of an output row are kept on the stack.
constexpr int64_t kPixels = 64;

// The first output position whose window's tap, `offset` past the window's start, is not before
// the image, and the first one past it.
struct Span {
  int64_t begin;
  int64_t end;
};

Span span_inside(int64_t offset, int64_t size, int64_t stride, int64_t outputs) {
  const int64_t begin = offset >= 0 ? 0 : divide_up(-offset, stride);
  const int64_t end = offset >= size ? 0 : (size - 1 - offset) / stride + 1;
  return {begin, std::min(end, outputs)};
}

class QuantizedTapsConv final : public QuantizedConvKernel {
 public:
  QuantizedTapsConv(const CondensedView& view, const ConvGeometry& geometry) : geometry_(geometry) {
    int64_t stored = 0;
    for (int64_t o = 0; o < view.out_features; ++o) {
      starts_.push_back(values_.size());
      if (stored == view.active || view.rows[stored] != o) continue;
      const int64_t entries = view.true_fan_in(stored);
      for (int64_t j = 0; j < entries; ++j) {
        values_.push_back(static_cast<const int8_t*>(view.values)[stored * view.fan_in + j]);
        indices_.push_back(static_cast<int32_t>(view.index(stored, j)));
      }
      ++stored;
    }
    starts_.push_back(values_.size());
  }

  void run(const QuantizedImages& x, void* y, const QuantizedEpilogue& epilogue,
           const Executor& executor) const override {
    const EvenWork even = work(x.size);
    const size_t chunks = chunk_count(executor, even);
    auto body = [&](size_t chunk) {
      const size_t end = chunk_begin(even.parts, chunks, chunk + 1);
      for (size_t part = chunk_begin(even.parts, chunks, chunk); part < end; ++part) {
        const auto n = static_cast<int64_t>(part) / geometry_.out_channels;
        const auto o = static_cast<int64_t>(part) % geometry_.out_channels;
        if (x.type == QuantizedType::kInt8)
          channel<int8_t>(x, n, o, y, epilogue);
        else
          channel<uint8_t>(x, n, o, y, epilogue);
      }
    };
    run_chunks(executor, chunks, body);
  }

  WorkPlan plan(const ConvInput& input, size_t threads,
                const DispatchCost& dispatch) const override {
    return plan_evenly(work(input), threads, dispatch);
  }

  LayoutInfo info() const override {
    return {static_cast<int64_t>(values_.size() + indices_.size() * sizeof(int32_t) +
                                 starts_.size() * sizeof(size_t)),
            1.0, 0.0};
  }

  bool holds(const CondensedView& view, const ConvGeometry& geometry) const override {
    if (!(geometry == geometry_)) return false;
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
  // A part is an output channel of an image.
  EvenWork work(const ConvInput& input) const {
    const double pixels = static_cast<double>(geometry_.output_size(0, input.height)) *
                          static_cast<double>(geometry_.output_size(1, input.width));
    const double products =
        static_cast<double>(values_.size()) + static_cast<double>(geometry_.out_channels);
    return {products * pixels * static_cast<double>(input.batch) * kMicrosecondsPerProduct,
            static_cast<size_t>(input.batch * geometry_.out_channels)};
  }

  // Output channel o of image n.
  template <typename X>
  void channel(const QuantizedImages& images, int64_t n, int64_t o, void* y,
               const QuantizedEpilogue& epilogue) const {
    const ConvInput& size = images.size;
    const int64_t height = geometry_.output_size(0, size.height);
    const int64_t width = geometry_.output_size(1, size.width);
    const ImageStrides from =
        image_strides(geometry_.in_channels, size.height, size.width, images.channels_last);
    const ImageStrides to =
        image_strides(geometry_.out_channels, height, width, images.channels_last);
    const FinishBounds bounds = finish_bounds(epilogue);
    const int64_t first = o / geometry_.group_outputs() * geometry_.group_inputs();
    const int64_t stride = geometry_.strides[1];
    for (int64_t i = 0; i < height; ++i)
      for (int64_t block = 0; block < width; block += kPixels) {
        const int64_t pixels = std::min(kPixels, width - block);
        int32_t sums[kPixels] = {};
        for (size_t at = starts_[o]; at < starts_[o + 1]; ++at) {
          const ConvTap tap = conv_tap(geometry_, indices_[at]);
          const int64_t row = i * geometry_.strides[0] - geometry_.pads[0] + tap.row;
          if (row < 0 || row >= size.height) continue;
          const int64_t offset = block * stride - geometry_.pads[1] + tap.column;
          const Span span = span_inside(offset, size.width, stride, pixels);
          const X* x = static_cast<const X*>(images.data) + from.at(n, first + tap.channel, row, 0);
          const int32_t value = values_[at];
          for (int64_t j = span.begin; j < span.end; ++j)
            sums[j] += value * (x[(offset + j * stride) * from.column] - images.zero_point);
        }
        for (int64_t j = 0; j < pixels; ++j)
          finish_at(epilogue, bounds, sums[j], epilogue.multipliers[o], o,
                    to.at(n, o, i, block + j), y);
      }
  }

  ConvGeometry geometry_;
  std::vector<size_t> starts_;  // [out_channels + 1], an ablated output has none
  std::vector<int8_t> values_;
  std::vector<int32_t> indices_;
};

}  // namespace

std::unique_ptr<QuantizedConvKernel> pack_quantized_taps_conv(const CondensedView& view,
                                                              const ConvGeometry& geometry,
                                                              const Executor&) {
  return std::make_unique<QuantizedTapsConv>(view, geometry);
}

}  // namespace fanin
