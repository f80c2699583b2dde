#include "kernels/rows_gemm.h"

#include <algorithm>
#include <cstring>

#include "core/aligned_buffer.h"
#include "core/parallel.h"
#include "kernels/source_row.h"

namespace fanin {
namespace {

// A multiply-add takes about a nanosecond: three loads, one of which gives an address.
constexpr double kMicrosecondsPerEntry = 1e-3;

// Copying a piece takes about 50 us.
constexpr size_t kPieceEntries = 1 << 15;

template <typename Index>
class RowsGemm final : public GemmKernel {
 public:
  RowsGemm(const CondensedView& view, const Executor& executor)
      : in_features_(view.in_features),
        out_features_(view.out_features),
        starts_(static_cast<size_t>(view.out_features) + 1),
        bias_(static_cast<size_t>(view.out_features)) {
    size_t entries = 0;
    for (int64_t o = 0, stored = 0; o < out_features_; ++o) {
      bias_[o] = view.bias[o];
      starts_[o] = entries;
      if (stored < view.active && view.rows[stored] == o)
        entries += static_cast<size_t>(view.true_fan_in(stored++));
    }
    starts_[out_features_] = entries;
    values_ = AlignedBuffer<float>(entries);
    indices_ = AlignedBuffer<Index>(entries);
    const size_t rows = static_cast<size_t>(view.active);
    const size_t pieces = std::clamp<size_t>(entries / kPieceEntries, 1, std::max<size_t>(rows, 1));
    auto copy_piece = [&](size_t piece) {
      const size_t end = chunk_begin(rows, pieces, piece + 1);
      for (size_t row = chunk_begin(rows, pieces, piece); row < end; ++row)
        copy_row(view, static_cast<int64_t>(row));
    };
    run_tasks(executor, pieces, copy_piece);
  }

  void run(const float* x, int64_t batch, float* y, const Epilogue& epilogue,
           const Executor& executor) const override {
    const size_t outputs = static_cast<size_t>(out_features_);
    const size_t chunks = chunk_count(executor, work(batch));
    auto body = [&](size_t chunk) {
      const int64_t end = static_cast<int64_t>(chunk_begin(outputs, chunks, chunk + 1));
      for (int64_t b = 0; b < batch; ++b)
        for (int64_t o = static_cast<int64_t>(chunk_begin(outputs, chunks, chunk)); o < end; ++o)
          y[b * out_features_ + o] =
              epilogue.apply(output(x + b * in_features_, o) +
                             (epilogue.residual ? epilogue.residual[b * out_features_ + o] : 0.0f));
    };
    run_chunks(executor, chunks, body);
  }

  WorkPlan plan(int64_t batch, size_t threads, const DispatchCost& dispatch) const override {
    return plan_evenly(work(batch), threads, dispatch);
  }

  LayoutInfo info() const override {
    return {
        static_cast<int64_t>(values_.bytes() + indices_.bytes() + starts_.bytes() + bias_.bytes()),
        1.0, 0.0};
  }

  bool holds(const CondensedView& view) const override {
    if (in_features_ != view.in_features || out_features_ != view.out_features) return false;
    if (std::memcmp(bias_.data(), view.bias, bias_.bytes()) != 0) return false;
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
    const size_t entries = values_.size() + bias_.size();
    return {static_cast<double>(entries) * static_cast<double>(batch) * kMicrosecondsPerEntry,
            static_cast<size_t>(out_features_)};
  }

  void copy_row(const CondensedView& view, int64_t row) {
    const int64_t o = view.rows[row];
    int64_t j = 0;
    for (size_t at = starts_[o]; at < starts_[o + 1]; ++at, ++j) {
      values_[at] = view.value(row, j);
      indices_[at] = static_cast<Index>(view.index(row, j));
    }
  }

  // Four sums hide the latency of the additions.
  float output(const float* x, int64_t o) const {
    const float* value = values_.data() + starts_[o];
    const Index* index = indices_.data() + starts_[o];
    const size_t count = starts_[o + 1] - starts_[o];
    float sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0;
    size_t j = 0;
    for (; j + 4 <= count; j += 4) {
      sum0 += value[j] * x[index[j]];
      sum1 += value[j + 1] * x[index[j + 1]];
      sum2 += value[j + 2] * x[index[j + 2]];
      sum3 += value[j + 3] * x[index[j + 3]];
    }
    for (; j < count; ++j) sum0 += value[j] * x[index[j]];
    return bias_[o] + ((sum0 + sum1) + (sum2 + sum3));
  }

  int64_t in_features_;
  int64_t out_features_;
  AlignedBuffer<float> values_;
  AlignedBuffer<Index> indices_;
  AlignedBuffer<size_t> starts_;  // [out_features + 1], an ablated output has none
  AlignedBuffer<float> bias_;
};

}  // namespace

std::unique_ptr<GemmKernel> pack_rows_gemm(const CondensedView& view, const Executor& executor) {
  if (view.in_features <= 65536) return std::make_unique<RowsGemm<uint16_t>>(view, executor);
  return std::make_unique<RowsGemm<uint32_t>>(view, executor);
}

}  // namespace fanin
