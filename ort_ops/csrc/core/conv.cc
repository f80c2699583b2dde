#include "core/conv.h"

#include <chrono>
#include <utility>

#include "core/packed_cache.h"
#include "kernels/conv_dispatch.h"

namespace fanin {
namespace {

class DispatchedConv final : public PackedConv {
 public:
  DispatchedConv(const ConvKernelRow& row, Cached<ConvKernel> cached, double seconds)
      : row_(row), cached_(std::move(cached)), seconds_(seconds) {}

  void run(const float* x, const ConvInput& input, float* y, const ConvEpilogue& epilogue,
           const Executor& executor) const override {
    if (input.batch > 0) cached_.kernel->run(x, input, y, epilogue, executor);
  }

  WorkPlan plan(const ConvInput& input, size_t threads,
                const DispatchCost& dispatch) const override {
    return cached_.kernel->plan(input, threads, dispatch);
  }

  std::vector<PackedInfo> info() const override {
    const LayoutInfo layout = cached_.kernel->info();
    return {
        {row_.name, {}, layout.bytes, layout.padding, layout.remainder, cached_.shared, seconds_}};
  }

  bool holds(const CondensedView& view, const ConvGeometry& geometry) const override {
    return cached_.kernel->holds(view, geometry);
  }

 private:
  const ConvKernelRow& row_;
  Cached<ConvKernel> cached_;
  double seconds_;
};

std::unique_ptr<PackedConv> pack_row(const ConvKernelRow& row, const CondensedView& view,
                                     const ConvGeometry& geometry, const Executor& executor) {
  const auto start = std::chrono::steady_clock::now();
  const uint64_t hash = content_hash(view, geometry);
  Cached<ConvKernel> cached = packed_conv_kernel(row, view, geometry, hash, executor);
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  return std::make_unique<DispatchedConv>(row, std::move(cached), spent.count());
}

}  // namespace

std::unique_ptr<PackedConv> PackedConv::pack(const CondensedView& view,
                                             const ConvGeometry& geometry, Isa isa,
                                             const Executor& executor) {
  return pack_row(select_conv_kernel(isa, view, geometry), view, geometry, executor);
}

std::unique_ptr<PackedConv> PackedConv::pack_kernel(const CondensedView& view,
                                                    const ConvGeometry& geometry,
                                                    const std::string& kernel,
                                                    const Executor& executor) {
  return pack_row(find_conv_kernel(kernel), view, geometry, executor);
}

}  // namespace fanin
