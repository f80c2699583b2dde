#include "core/gemm.h"

#include <utility>

#include "core/batch_kernels.h"
#include "core/float16_run.h"
#include "core/packed_cache.h"
#include "kernels/dispatch.h"

namespace fanin {
namespace {

using Kernels = BatchKernels<KernelRow, GemmKernel>;

class DispatchedGemm final : public PackedGemm {
 public:
  DispatchedGemm(const CondensedView& view, Kernels kernels)
      : in_features_(view.in_features),
        out_features_(view.out_features),
        compute_(view.compute),
        kernels_(std::move(kernels)) {}

  void run(const float* x, int64_t batch, float* y, const Epilogue& epilogue,
           const Executor& executor) const override {
    if (batch < 1) return;
    const GemmKernel& kernel = kernels_.at(batch);
    if (compute_ == kernels_.row(batch).compute) return kernel.run(x, batch, y, epilogue, executor);
    run_rounded(x, batch, in_features_, executor,
                [&](const float* rounded, int64_t first, int64_t samples) {
                  Epilogue slice = epilogue;
                  if (slice.residual) slice.residual += first * out_features_;
                  kernel.run(rounded, samples, y + first * out_features_, slice, executor);
                });
  }

  WorkPlan plan(int64_t batch, size_t threads, const DispatchCost& dispatch) const override {
    return kernels_.at(batch).plan(batch, threads, dispatch);
  }

  std::vector<PackedInfo> info() const override { return kernels_.info(); }

  bool holds(const CondensedView& view) const override { return kernels_.holds(view); }

 private:
  int64_t in_features_;
  int64_t out_features_;
  ValueType compute_;
  Kernels kernels_;
};

}  // namespace

std::unique_ptr<PackedGemm> PackedGemm::pack(const CondensedView& view, BatchRange batches, Isa isa,
                                             const Executor& executor) {
  const uint64_t hash = content_hash(view);
  return std::make_unique<DispatchedGemm>(
      view,
      Kernels(
          batches,
          [&](int64_t batch) -> const KernelRow& { return select_kernel(isa, batch, view); },
          [&](const KernelRow& row, int64_t batch) { return last_batch(row, isa, batch, view); },
          [&](const KernelRow& row) { return packed_kernel(row, view, hash, executor); }));
}

std::unique_ptr<PackedGemm> PackedGemm::pack_kernel(const CondensedView& view, BatchRange batches,
                                                    const std::string& kernel,
                                                    const Executor& executor) {
  const KernelRow& forced = find_kernel(kernel, view);
  const uint64_t hash = content_hash(view);
  return std::make_unique<DispatchedGemm>(
      view, Kernels(
                batches, [&](int64_t) -> const KernelRow& { return forced; },
                [&](const KernelRow&, int64_t) { return batches.max; },
                [&](const KernelRow& row) { return packed_kernel(row, view, hash, executor); }));
}

}  // namespace fanin
