#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/packed_cache.h"
#include "cuda/built_device.h"
#include "cuda/conv.h"
#include "cuda/conv_layout.h"
#include "cuda/device_memory.h"
#include "cuda/dispatch.h"
#include "cuda/expand_plan.h"
#include "cuda/kernels.h"
#include "cuda/pack.h"

namespace fanin::cuda {
namespace {

constexpr const char* kOp = "CondensedConv";

const void* expand_conv_kernel(ValueType activations, const ExpandKey& key) {
  switch (activations) {
    case ValueType::kFloat16:
      return expand_conv_kernel_f16(key);
    case ValueType::kBfloat16:
      return expand_conv_kernel_bf16(key);
    default:
      return expand_conv_kernel_tf32(key);
  }
}

// The layout for one row of the table, and its launch.
class Packed {
 public:
  Packed(const KernelRow& row, const CondensedView& view, const ConvGeometry& geometry, int device,
         const DeviceLimits& limits)
      : row_(row), limits_(limits) {
    const auto start = std::chrono::steady_clock::now();
    Blob blob;
    // The direct kernel has one layout for all activations.
    static const char direct = 0;
    const void* kernel = &direct;
    if (row.layout == Layout::kExpand) {
      expand_ = pack_expand_conv(view, geometry, row.activations, blob);
      kernel = &row;
      for (int tile : kPixelTiles)
        for (bool vector_x : {false, true})
          allow_shared_memory(expand_conv_kernel(row.activations, {tile, vector_x}), limits);
    } else {
      direct_ = pack_conv(view, geometry, blob);
    }
    placed_ = place(blob, kernel, content_hash(view, geometry), view, device);
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  void run(const RunArguments& run, const ConvInput& input, void* stream) const {
    const void* base = placed_.memory().data();
    if (row_.layout == Layout::kExpand) {
      const ExpandPlan plan = plan_expand_conv(expand_, run, input, limits_);
      ExpandConvArgs args = complete(expand_.arguments(base), run, input, expand_.geometry, plan);
      launch(expand_conv_kernel(row_.activations, {plan.tile, plan.vector_x}), plan.grid_x,
             plan.grid_y, plan.warps, plan.shared_bytes, plan.cluster, &args, stream, kOp);
    } else {
      ConvArgs args = direct_.arguments(base, run, input);
      const ConvPlan plan = plan_conv(args);
      launch(conv_kernel(row_.activations), plan.grid_x, 1, plan.warps, 0, 1, &args, stream, kOp);
    }
  }

  bool has_outputs(const ConvInput& input) const {
    const ConvGeometry& geometry =
        row_.layout == Layout::kExpand ? expand_.geometry : direct_.geometry;
    return input.batch > 0 && geometry.output_size(0, input.height) > 0 &&
           geometry.output_size(1, input.width) > 0;
  }

  PackedInfo info() const {
    PackedInfo info;
    info.kernel = row_.name;
    info.bytes = static_cast<int64_t>(placed_.memory().size());
    info.padding = row_.layout == Layout::kExpand ? expand_.tiles.padding : 1.0;
    info.shared = placed_.shared;
    info.seconds = seconds_;
    return info;
  }

 private:
  const KernelRow& row_;
  const DeviceLimits limits_;
  ConvLayout direct_;  // that of the row's layout is filled in
  ExpandConvLayout expand_;
  PlacedLayer placed_;
  double seconds_ = 0;
};

class DispatchedConv final : public PackedConv {
 public:
  // `strict`: without TF32.
  DispatchedConv(std::shared_ptr<const Packed> kernel, std::shared_ptr<const Packed> strict)
      : kernel_(std::move(kernel)), strict_(std::move(strict)) {}

  void run(const void* x, const ConvInput& input, void* y, const ConvEpilogue& epilogue,
           void* stream, bool tf32) const override {
    const Packed& kernel = tf32 ? *kernel_ : *strict_;
    if (!kernel.has_outputs(input)) return;
    RunArguments run;
    run.x = x;
    run.residual = epilogue.residual;
    run.y = y;
    run.clip_min = epilogue.clip_min;
    run.clip_max = epilogue.clip_max;
    run.gate = epilogue.gate;
    kernel.run(run, input, stream);
  }

  std::vector<PackedInfo> info() const override {
    std::vector<PackedInfo> infos{kernel_->info()};
    if (strict_ != kernel_) infos.push_back(strict_->info());
    return infos;
  }

 private:
  const std::shared_ptr<const Packed> kernel_, strict_;
};

}  // namespace

std::unique_ptr<PackedConv> PackedConv::pack(const CondensedView& view,
                                             const ConvGeometry& geometry, ValueType activations,
                                             int device) {
  const CurrentDevice current(device);
  const DeviceLimits limits = built_limits(device);
  const bool unproven = unproven_requested();
  // As for CondensedGemm, see packed_gemm.cc.
  const ConvFacts facts =
      unproven ? ConvFacts::of(view, geometry, activations) : ConvFacts{activations, geometry};
  const KernelRow& row = select_conv_kernel(facts, limits, {unproven, true});
  const KernelRow& strict_row = select_conv_kernel(facts, limits, {unproven, false});
  const auto kernel = std::make_shared<Packed>(row, view, geometry, device, limits);
  const auto strict = &row == &strict_row
                          ? kernel
                          : std::make_shared<Packed>(strict_row, view, geometry, device, limits);
  return std::make_unique<DispatchedConv>(kernel, strict);
}

std::unique_ptr<PackedConv> pack_conv_kernel(const CondensedView& view,
                                             const ConvGeometry& geometry, ValueType activations,
                                             int device, const std::string& kernel) {
  const CurrentDevice current(device);
  const KernelRow& row = find_kernel(Op::kConv, kernel, activations);
  const DeviceLimits limits = built_limits(device);
  if (row.layout == Layout::kExpand) {
    const std::string problem = expand_problem(ConvFacts::of(view, geometry, activations), limits);
    if (!problem.empty()) throw std::invalid_argument(problem);
  }
  const auto packed = std::make_shared<Packed>(row, view, geometry, device, limits);
  return std::make_unique<DispatchedConv>(packed, packed);
}

}  // namespace fanin::cuda
