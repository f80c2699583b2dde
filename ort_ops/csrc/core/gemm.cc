#include "core/gemm.h"

namespace fanin {
namespace {

// Keeps the entries as they came and runs the scalar reference.
class ScalarGemm final : public PackedGemm {
 public:
  explicit ScalarGemm(const CondensedView& view) : view_(view) {
    const size_t entries = static_cast<size_t>(view.active) * static_cast<size_t>(view.fan_in);
    values_.assign(view.values, view.values + entries);
    indices_.resize(entries);
    for (int64_t i = 0; i < view.active; ++i)
      for (int64_t j = 0; j < view.fan_in; ++j)
        indices_[i * view.fan_in + j] = static_cast<int32_t>(view.index(i, j));
    rows_.assign(view.rows, view.rows + view.active);
    bias_.assign(view.bias, view.bias + view.out_features);
    view_.values = values_.data();
    view_.indices = indices_.data();
    view_.index_type = IndexType::kInt32;
    view_.rows = rows_.data();
    view_.bias = bias_.data();
  }

  void run(const float* x, int64_t batch, float* y, const Epilogue& epilogue,
           const Executor&) const override {
    run_plain(view_, x, batch, y, epilogue);
  }

  std::vector<PackedInfo> info() const override {
    PackedInfo info;
    info.kernel = "f32-gemm-plain-scalar";
    info.bytes = static_cast<int64_t>(values_.size() * 8);
    return {info};
  }

 private:
  CondensedView view_;
  std::vector<float> values_;
  std::vector<int32_t> indices_;
  std::vector<int32_t> rows_;
  std::vector<float> bias_;
};

}  // namespace

std::unique_ptr<PackedGemm> PackedGemm::pack(const CondensedView& view, BatchRange, Isa) {
  return std::make_unique<ScalarGemm>(view);
}

}  // namespace fanin
