#include "kernels/quantized_rows.h"

#include "core/aligned_buffer.h"
#include "core/parallel.h"
#include "kernels/quantized_finish.h"
#include "kernels/source_row.h"

namespace fanin {
namespace {

// Two loads, one of which gives an address, a multiplication and an addition.
constexpr double kMicrosecondsPerEntry = 1e-3;

template <typename Index>
class QuantizedRows final : public QuantizedKernel {
 public:
  explicit QuantizedRows(const CondensedView& view)
      : in_features_(view.in_features),
        out_features_(view.out_features),
        starts_(static_cast<size_t>(view.out_features) + 1) {
    size_t entries = 0;
    for (int64_t o = 0, stored = 0; o < out_features_; ++o) {
      starts_[o] = entries;
      if (stored < view.active && view.rows[stored] == o)
        entries += static_cast<size_t>(view.true_fan_in(stored++));
    }
    starts_[out_features_] = entries;
    values_ = AlignedBuffer<int8_t>(entries);
    indices_ = AlignedBuffer<Index>(entries);
    for (int64_t row = 0; row < view.active; ++row) {
      const int64_t o = view.rows[row], first = row * view.fan_in;
      for (size_t at = starts_[o]; at < starts_[o + 1]; ++at) {
        const auto j = static_cast<int64_t>(at - starts_[o]);
        values_[at] = static_cast<const int8_t*>(view.values)[first + j];
        indices_[at] = static_cast<Index>(view.index(row, j));
      }
    }
  }

  void run(const QuantizedInput& x, int64_t batch, void* y, const QuantizedEpilogue& epilogue,
           const Executor& executor) const override {
    const FinishBounds bounds = finish_bounds(epilogue);
    const auto outputs = static_cast<size_t>(out_features_);
    const size_t chunks = chunk_count(executor, work(batch));
    auto body = [&](size_t chunk) {
      const auto begin = static_cast<int64_t>(chunk_begin(outputs, chunks, chunk));
      const auto end = static_cast<int64_t>(chunk_begin(outputs, chunks, chunk + 1));
      for (int64_t b = 0; b < batch; ++b)
        visit_sample(x, b, in_features_, [&](const auto& sample) {
          for (int64_t o = begin; o < end; ++o)
            finish_output(epilogue, bounds, sum(sample, o), b, o, out_features_, y);
        });
    };
    run_chunks(executor, chunks, body);
  }

  WorkPlan plan(int64_t batch, size_t threads, const DispatchCost& dispatch) const override {
    return plan_evenly(work(batch), threads, dispatch);
  }

  LayoutInfo info() const override {
    return {static_cast<int64_t>(values_.bytes() + indices_.bytes() + starts_.bytes()), 1.0, 0.0};
  }

  bool holds(const CondensedView& view) const override {
    if (in_features_ != view.in_features || out_features_ != view.out_features) return false;
    for (int64_t o = 0, i = 0; o < out_features_; ++o) {
      const bool stored = i < view.active && view.rows[i] == o;
      const size_t count = stored ? static_cast<size_t>(view.true_fan_in(i)) : 0;
      if (starts_[o + 1] - starts_[o] != count) return false;
      if (!stored) continue;
      SourceRow row = source_row(view, i);
      for (size_t at = starts_[o]; at < starts_[o + 1]; ++at)
        if (!row.take(view, indices_[at], values_[at])) return false;
      ++i;
    }
    return true;
  }

 private:
  EvenWork work(int64_t batch) const {
    const double entries = static_cast<double>(values_.size()) + static_cast<double>(out_features_);
    return {entries * static_cast<double>(batch) * kMicrosecondsPerEntry,
            static_cast<size_t>(out_features_)};
  }

  template <typename Sample>
  int32_t sum(const Sample& sample, int64_t o) const {
    int32_t total = 0;
    for (size_t at = starts_[o]; at < starts_[o + 1]; ++at)
      total += values_[at] * sample[indices_[at]];
    return total;
  }

  int64_t in_features_;
  int64_t out_features_;
  AlignedBuffer<int8_t> values_;
  AlignedBuffer<Index> indices_;
  AlignedBuffer<size_t> starts_;  // [out_features + 1], an ablated output has none
};

}  // namespace

std::unique_ptr<QuantizedKernel> pack_quantized_rows(const CondensedView& view, const Executor&) {
  if (view.in_features <= 65536) return std::make_unique<QuantizedRows<uint16_t>>(view);
  return std::make_unique<QuantizedRows<uint32_t>>(view);
}

}  // namespace fanin
