#include "kernels/conv_by_size.h"

#include <utility>

namespace fanin {
namespace {

class ConvBySize final : public ConvKernel {
 public:
  ConvBySize(std::unique_ptr<ConvKernel> small, std::unique_ptr<ConvKernel> large)
      : small_(std::move(small)), large_(std::move(large)) {}

  void run(const float* x, const ConvInput& input, float* y, const ConvEpilogue& epilogue,
           const Executor& executor) const override {
    kernel(input).run(x, input, y, epilogue, executor);
  }

  WorkPlan plan(const ConvInput& input, size_t threads,
                const DispatchCost& dispatch) const override {
    return kernel(input).plan(input, threads, dispatch);
  }

  LayoutInfo info() const override {
    LayoutInfo both = small_->info();
    both.bytes += large_->info().bytes;
    return both;
  }

  bool holds(const CondensedView& view, const ConvGeometry& geometry) const override {
    return small_->holds(view, geometry) && large_->holds(view, geometry);
  }

 private:
  const ConvKernel& kernel(const ConvInput& input) const {
    return input.height * input.width >= kLargePixels ? *large_ : *small_;
  }

  std::unique_ptr<ConvKernel> small_, large_;
};

}  // namespace

std::unique_ptr<ConvKernel> conv_by_size(std::unique_ptr<ConvKernel> small,
                                         std::unique_ptr<ConvKernel> large) {
  return std::make_unique<ConvBySize>(std::move(small), std::move(large));
}

}  // namespace fanin
