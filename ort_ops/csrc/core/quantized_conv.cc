#include "core/quantized_conv.h"

#include <utility>

#include "core/packed_cache.h"
#include "kernels/quantized_conv_dispatch.h"

namespace fanin {
namespace {

// One layout serves images of every size.
class DispatchedQuantizedConv final : public PackedQuantizedConv {
 public:
  DispatchedQuantizedConv(const QuantizedConvKernelRow& row, const CondensedView& view,
                          const ConvGeometry& geometry, const Executor& executor)
      : row_(row),
        cached_(packed_quantized_conv_kernel(row, view, geometry, content_hash(view, geometry),
                                             executor)) {}

  void run(const QuantizedImages& x, void* y, const QuantizedEpilogue& epilogue,
           const Executor& executor) const override {
    if (x.size.batch >= 1) cached_.kernel->run(x, y, epilogue, executor);
  }

  WorkPlan plan(const ConvInput& input, size_t threads,
                const DispatchCost& dispatch) const override {
    return cached_.kernel->plan(input, threads, dispatch);
  }

  std::vector<PackedInfo> info() const override { return {cached_.info(row_.name, {}, {})}; }

  bool holds(const CondensedView& view, const ConvGeometry& geometry) const override {
    return cached_.kernel->holds(view, geometry);
  }

 private:
  const QuantizedConvKernelRow& row_;
  Cached<QuantizedConvKernel> cached_;
};

}  // namespace

std::string validate_quantized(const CondensedView& view, const ConvGeometry& geometry) {
  const std::string why = validate_quantized(view);
  return why.empty() ? validate(view, geometry) : why;
}

std::unique_ptr<PackedQuantizedConv> PackedQuantizedConv::pack(const CondensedView& view,
                                                               const ConvGeometry& geometry,
                                                               Isa isa, const Executor& executor) {
  return std::make_unique<DispatchedQuantizedConv>(
      select_quantized_conv_kernel(isa, view, geometry), view, geometry, executor);
}

std::unique_ptr<PackedQuantizedConv> PackedQuantizedConv::pack_kernel(const CondensedView& view,
                                                                      const ConvGeometry& geometry,
                                                                      const std::string& kernel,
                                                                      const Executor& executor) {
  return std::make_unique<DispatchedQuantizedConv>(find_quantized_conv_kernel(kernel), view,
                                                   geometry, executor);
}

}  // namespace fanin
