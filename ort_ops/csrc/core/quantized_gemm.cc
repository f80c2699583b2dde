#include "core/quantized_gemm.h"

#include <utility>

#include "core/batch_kernels.h"
#include "core/packed_cache.h"
#include "kernels/quantized_dispatch.h"

namespace fanin {
namespace {

using Kernels = BatchKernels<QuantizedKernelRow, QuantizedKernel>;

class DispatchedQuantizedGemm final : public PackedQuantizedGemm {
 public:
  explicit DispatchedQuantizedGemm(Kernels kernels) : kernels_(std::move(kernels)) {}

  void run(const QuantizedInput& x, int64_t batch, void* y, const QuantizedEpilogue& epilogue,
           const Executor& executor) const override {
    if (batch >= 1) kernels_.at(batch).run(x, batch, y, epilogue, executor);
  }

  WorkPlan plan(int64_t batch, size_t threads, const DispatchCost& dispatch) const override {
    return kernels_.at(batch).plan(batch, threads, dispatch);
  }

  std::vector<PackedInfo> info() const override { return kernels_.info(); }

  std::string kernel(int64_t batch) const override { return kernels_.name(batch); }

  bool holds(const CondensedView& view) const override { return kernels_.holds(view); }

 private:
  Kernels kernels_;
};

}  // namespace

std::string validate_quantized(const CondensedView& view) {
  if (view.value_type != ValueType::kInt8)
    return std::string("values are ") + value_type_name(view.value_type) + ", they must be int8";
  if (view.fan_in > kMaxQuantizedFanIn)
    return "fan-in is " + std::to_string(view.fan_in) + ", it must be " +
           std::to_string(kMaxQuantizedFanIn) + " at most, so that every sum fits int32";
  return validate(view);
}

std::unique_ptr<PackedQuantizedGemm> PackedQuantizedGemm::pack(const CondensedView& view,
                                                               BatchRange batches, Isa isa,
                                                               const Executor& executor) {
  using Row = QuantizedKernelRow;
  const uint64_t hash = content_hash(view);
  const QuantizedUse use{isa, cpu_kind(), batches};
  return std::make_unique<DispatchedQuantizedGemm>(Kernels(
      batches,
      [&](int64_t batch) -> const Row& { return select_quantized_kernel(use, batch, view); },
      [&](const Row& row, int64_t batch) { return last_quantized_batch(row, use, batch, view); },
      [&](const Row& row) { return packed_quantized_kernel(row, view, hash, executor); }));
}

std::unique_ptr<PackedQuantizedGemm> PackedQuantizedGemm::pack_kernel(const CondensedView& view,
                                                                      BatchRange batches,
                                                                      const std::string& kernel,
                                                                      const Executor& executor) {
  using Row = QuantizedKernelRow;
  const Row& forced = find_quantized_kernel(kernel);
  const uint64_t hash = content_hash(view);
  return std::make_unique<DispatchedQuantizedGemm>(Kernels(
      batches, [&](int64_t) -> const Row& { return forced; },
      [&](const Row&, int64_t) { return batches.max; },
      [&](const Row& row) { return packed_quantized_kernel(row, view, hash, executor); }));
}

}  // namespace fanin
