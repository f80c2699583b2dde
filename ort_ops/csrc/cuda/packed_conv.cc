#include <chrono>
#include <string>

#include "core/packed_cache.h"
#include "cuda/conv.h"
#include "cuda/conv_layout.h"
#include "cuda/device_memory.h"
#include "cuda/dispatch.h"
#include "cuda/kernels.h"

namespace fanin::cuda {
namespace {

class DirectConv final : public PackedConv {
 public:
  DirectConv(const CondensedView& view, const ConvGeometry& geometry, const KernelRow& row,
             int device)
      : row_(row) {
    const auto start = std::chrono::steady_clock::now();
    Blob blob;
    layout_ = pack_conv(view, geometry, blob);
    // One layout for all activations.
    static const char kernel = 0;
    placed_ = place(blob, &kernel, content_hash(view, geometry), view, device);
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  void run(const void* x, const ConvInput& input, void* y, const ConvEpilogue& epilogue,
           void* stream) const override {
    if (input.batch < 1) return;
    RunArguments run;
    run.x = x;
    run.residual = epilogue.residual;
    run.y = y;
    run.clip_min = epilogue.clip_min;
    run.clip_max = epilogue.clip_max;
    run.gate = epilogue.gate;
    ConvArgs args = layout_.arguments(placed_.memory().data(), run, input);
    const ConvPlan plan = plan_conv(args);
    launch(conv_kernel(row_.activations), plan.grid_x, 1, plan.warps, 0, 1, &args, stream,
           "CondensedConv");
  }

  std::vector<PackedInfo> info() const override {
    PackedInfo info;
    info.kernel = row_.name;
    info.bytes = static_cast<int64_t>(placed_.memory().size());
    info.shared = placed_.shared;
    info.seconds = seconds_;
    return {info};
  }

 private:
  const KernelRow& row_;
  ConvLayout layout_;
  PlacedLayer placed_;
  double seconds_ = 0;
};

}  // namespace

std::unique_ptr<PackedConv> PackedConv::pack(const CondensedView& view,
                                             const ConvGeometry& geometry, ValueType activations,
                                             int device) {
  const CurrentDevice current(device);
  return std::make_unique<DirectConv>(view, geometry, select_conv_kernel(activations), device);
}

}  // namespace fanin::cuda
