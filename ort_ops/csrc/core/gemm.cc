#include "core/gemm.h"

#include <algorithm>
#include <utility>

#include "core/packed_cache.h"
#include "kernels/dispatch.h"

namespace fanin {
namespace {

struct Packed {
  const KernelRow* row;
  BatchRange batches;
  CachedKernel cached;
};

class DispatchedGemm final : public PackedGemm {
 public:
  explicit DispatchedGemm(std::vector<Packed> kernels) : kernels_(std::move(kernels)) {}

  void run(const float* x, int64_t batch, float* y, const Epilogue& epilogue,
           const Executor& executor) const override {
    if (batch >= 1) kernel_for(batch).run(x, batch, y, epilogue, executor);
  }

  WorkPlan plan(int64_t batch, size_t threads, const DispatchCost& dispatch) const override {
    return kernel_for(batch).plan(batch, threads, dispatch);
  }

  std::vector<PackedInfo> info() const override {
    std::vector<PackedInfo> infos;
    for (const Packed& packed : kernels_)
      infos.push_back(packed.cached.info(packed.row->name, packed.batches, {}));
    return infos;
  }

  bool holds(const CondensedView& view) const override {
    return std::all_of(kernels_.begin(), kernels_.end(),
                       [&view](const Packed& packed) { return packed.cached.kernel->holds(view); });
  }

 private:
  // A batch outside the declared range is still computed, by the nearest kernel.
  const GemmKernel& kernel_for(int64_t batch) const {
    const auto chosen =
        std::find_if(kernels_.begin(), kernels_.end() - 1,
                     [batch](const Packed& packed) { return batch <= packed.batches.max; });
    return *chosen->cached.kernel;
  }

  std::vector<Packed> kernels_;  // by rising batch
};

}  // namespace

std::unique_ptr<PackedGemm> PackedGemm::pack(const CondensedView& view, BatchRange batches, Isa isa,
                                             const Executor& executor) {
  std::vector<Packed> kernels;
  const uint64_t hash = content_hash(view);
  const int64_t last = std::max<int64_t>(1, batches.max);
  for (int64_t first = std::clamp<int64_t>(batches.min, 1, last);;) {
    const KernelRow& row = select_kernel(isa, first, view);
    // A layout serves all batches of its row, even those for which another would be slightly
    // faster: another copy of the weights would cost more.
    const BatchRange served{first, std::min(last, last_batch(row, isa, first, view))};
    kernels.push_back({&row, served, packed_kernel(row, view, hash, executor)});
    if (served.max == last) break;
    first = served.max + 1;
  }
  return std::make_unique<DispatchedGemm>(std::move(kernels));
}

std::unique_ptr<PackedGemm> PackedGemm::pack_kernel(const CondensedView& view, BatchRange batches,
                                                    const std::string& kernel,
                                                    const Executor& executor) {
  const KernelRow& row = find_kernel(kernel, view);
  std::vector<Packed> kernels;
  kernels.push_back({&row, batches, packed_kernel(row, view, content_hash(view), executor)});
  return std::make_unique<DispatchedGemm>(std::move(kernels));
}

}  // namespace fanin
