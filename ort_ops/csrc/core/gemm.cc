#include "core/gemm.h"

#include <algorithm>
#include <utility>

#include "kernels/dispatch.h"

namespace fanin {
namespace {

struct Packed {
  const KernelRow* row;
  BatchRange batches;
  std::unique_ptr<GemmKernel> kernel;
};

class DispatchedGemm final : public PackedGemm {
 public:
  explicit DispatchedGemm(std::vector<Packed> kernels) : kernels_(std::move(kernels)) {}

  void run(const float* x, int64_t batch, float* y, const Epilogue& epilogue,
           const Executor& executor) const override {
    if (batch < 1) return;
    // A batch outside the promised range is still computed, by the nearest kernel.
    const auto chosen =
        std::find_if(kernels_.begin(), kernels_.end() - 1,
                     [batch](const Packed& packed) { return batch <= packed.batches.max; });
    chosen->kernel->run(x, batch, y, epilogue, executor);
  }

  std::vector<PackedInfo> info() const override {
    std::vector<PackedInfo> infos;
    for (const Packed& packed : kernels_) {
      const LayoutInfo layout = packed.kernel->info();
      infos.push_back(
          {packed.row->name, packed.batches, layout.bytes, layout.padding, layout.remainder});
    }
    return infos;
  }

 private:
  std::vector<Packed> kernels_;  // by rising batch
};

}  // namespace

std::unique_ptr<PackedGemm> PackedGemm::pack(const CondensedView& view, BatchRange batches,
                                             Isa isa) {
  std::vector<Packed> kernels;
  const int64_t last = std::max<int64_t>(1, batches.max);
  for (int64_t first = std::clamp<int64_t>(batches.min, 1, last);;) {
    const KernelRow& row = select_kernel(isa, first, view);
    // A layout serves all batches of its row, also those for which another would be a little
    // faster: a further copy of the weights costs more.
    const BatchRange served{first, std::min(last, row.batches.max)};
    kernels.push_back({&row, served, row.pack(view, served)});
    if (served.max == last) break;
    first = served.max + 1;
  }
  return std::make_unique<DispatchedGemm>(std::move(kernels));
}

std::unique_ptr<PackedGemm> PackedGemm::pack_kernel(const CondensedView& view, BatchRange batches,
                                                    const std::string& kernel) {
  const KernelRow& row = find_kernel(kernel, view);
  std::vector<Packed> kernels;
  kernels.push_back({&row, batches, row.pack(view, batches)});
  return std::make_unique<DispatchedGemm>(std::move(kernels));
}

}  // namespace fanin
