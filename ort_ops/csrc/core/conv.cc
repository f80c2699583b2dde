#include "core/conv.h"

#include <algorithm>
#include <utility>

#include "core/packed_cache.h"
#include "kernels/conv_dispatch.h"

namespace fanin {
namespace {

struct Packed {
  const ConvKernelRow* row;
  PixelRange pixels;
  Cached<ConvKernel> cached;
};

class DispatchedConv final : public PackedConv {
 public:
  explicit DispatchedConv(std::vector<Packed> kernels) : kernels_(std::move(kernels)) {}

  void run(const float* x, const ConvInput& input, float* y, const ConvEpilogue& epilogue,
           const Executor& executor) const override {
    if (input.batch >= 1) kernel_for(input).run(x, input, y, epilogue, executor);
  }

  WorkPlan plan(const ConvInput& input, size_t threads,
                const DispatchCost& dispatch) const override {
    return kernel_for(input).plan(input, threads, dispatch);
  }

  std::vector<PackedInfo> info() const override {
    std::vector<PackedInfo> infos;
    for (const Packed& packed : kernels_)
      infos.push_back(packed.cached.info(packed.row->name, {}, packed.pixels));
    return infos;
  }

  bool holds(const CondensedView& view, const ConvGeometry& geometry) const override {
    return std::all_of(kernels_.begin(), kernels_.end(), [&](const Packed& packed) {
      return packed.cached.kernel->holds(view, geometry);
    });
  }

 private:
  const ConvKernel& kernel_for(const ConvInput& input) const {
    const int64_t pixels = input.height * input.width;
    const auto chosen =
        std::find_if(kernels_.begin(), kernels_.end() - 1,
                     [pixels](const Packed& packed) { return pixels <= packed.pixels.max; });
    return *chosen->cached.kernel;
  }

  std::vector<Packed> kernels_;  // by rising size of the image
};

}  // namespace

std::unique_ptr<PackedConv> PackedConv::pack(const CondensedView& view,
                                             const ConvGeometry& geometry, Isa isa,
                                             const Executor& executor) {
  std::vector<Packed> kernels;
  const uint64_t hash = content_hash(view, geometry);
  for (PixelRange served;;) {
    const ConvKernelRow& row = select_conv_kernel(isa, served.min, view, geometry);
    served.max = last_pixels(row, isa, served.min, view, geometry);
    kernels.push_back({&row, served, packed_conv_kernel(row, view, geometry, hash, executor)});
    if (served.max == PixelRange().max) break;
    served.min = served.max + 1;
  }
  return std::make_unique<DispatchedConv>(std::move(kernels));
}

std::unique_ptr<PackedConv> PackedConv::pack_kernel(const CondensedView& view,
                                                    const ConvGeometry& geometry,
                                                    const std::string& kernel,
                                                    const Executor& executor) {
  std::vector<Packed> kernels;
  const ConvKernelRow& row = find_conv_kernel(kernel);
  const uint64_t hash = content_hash(view, geometry);
  kernels.push_back({&row, {}, packed_conv_kernel(row, view, geometry, hash, executor)});
  return std::make_unique<DispatchedConv>(std::move(kernels));
}

}  // namespace fanin
