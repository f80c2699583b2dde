#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "core/packed_cache.h"
#include "core/thread_executor.h"
#include "cuda/delta_plan.h"
#include "cuda/device_memory.h"
#include "cuda/dispatch.h"
#include "cuda/gemm.h"
#include "cuda/kernels.h"
#include "cuda/layout.h"
#include "cuda/pack.h"
#include "cuda/plan.h"

namespace fanin::cuda {
namespace {

constexpr const char* kOp = "CondensedGemm";

// Allows a kernel as much shared memory as the device has; called before any run.
void allow_shared_memory(const void* kernel, const DeviceLimits& limits) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(limits.shared_bytes_per_block)),
        "cudaFuncSetAttribute");
}

const void* stream_kernel(ValueType activations, const StreamKey& key) {
  switch (activations) {
    case ValueType::kFloat16:
      return stream_kernel_f16(key);
    case ValueType::kBfloat16:
      return stream_kernel_bf16(key);
    default:
      return stream_kernel_f32(key);
  }
}

const void* delta_kernel(ValueType activations, const DeltaKey& key) {
  switch (activations) {
    case ValueType::kFloat16:
      return delta_kernel_f16(key);
    case ValueType::kBfloat16:
      return delta_kernel_bf16(key);
    default:
      return delta_kernel_f32(key);
  }
}

const void* expand_kernel(ValueType activations, const ExpandKey& key) {
  return activations == ValueType::kFloat16 ? expand_kernel_f16(key) : expand_kernel_bf16(key);
}

// What the device offers to kernels as they were built: code for an older one that the driver has
// translated lacks the newer instructions.
DeviceLimits built_limits(int device) {
  DeviceLimits limits = limits_of(device);
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, expand_kernel_bf16({})), "cudaFuncGetAttributes");
  limits.capability = std::min<int64_t>(limits.capability, attributes.ptxVersion);
  return limits;
}

// Packing reads and writes memory, which more threads than these hardly do faster.
ThreadExecutor packing_threads() {
  return ThreadExecutor(std::clamp<size_t>(std::thread::hardware_concurrency(), 1, 8));
}

// One layout of the layer, and its launch.
class Packed {
 public:
  Packed(const KernelRow& row, BatchRange batches, const CondensedView& view, uint64_t hash,
         int device, const DeviceLimits& limits)
      : row_(row), batches_(batches), limits_(limits) {
    const auto start = std::chrono::steady_clock::now();
    Blob blob;
    if (row.layout == Layout::kStream) {
      stream_ = pack_stream(view, blob);
      for (int samples : {1, 2, 4, 8})
        for (bool staged : {false, true})
          if (!staged || stream_.index_bytes == 2)
            allow_shared_memory(stream_kernel(row.activations, stream_key(samples, staged)),
                                limits);
    } else if (row.layout == Layout::kDelta) {
      delta_ = pack_delta(view, delta_cut(view, limits), packing_threads(), blob);
      for (int samples : {1, 2, 4})
        allow_shared_memory(delta_kernel(row.activations, {delta_.value_type, samples}), limits);
    } else if (row.layout == Layout::kExpand) {
      expand_ = pack_expand(view, row.activations, blob);
      for (int tile : kExpandTiles)
        for (bool vector_x : {false, true})
          allow_shared_memory(expand_kernel(row.activations, {tile, vector_x}), limits);
    } else {
      panel_ = pack_panel(view, panel_cut(view.in_features, limits), blob);
      for (bool vector_x : {false, true})
        allow_shared_memory(panel_kernel(row.activations, vector_x), limits);
    }
    placed_ = place(blob, &row, hash, view, device);
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  void run(const RunArguments& run, void* stream) const {
    const void* base = placed_.memory().data();
    if (row_.layout == Layout::kStream) {
      const StreamPlan plan = plan_stream(stream_, run.batch, row_.activations, limits_);
      StreamArgs args = complete(stream_.arguments(base), run, plan, row_.activations);
      launch(stream_kernel(row_.activations, stream_key(plan.samples, plan.staged)), plan.grid_x,
             plan.grid_y, plan.warps, plan.shared_bytes, 1, &args, stream, kOp);
    } else if (row_.layout == Layout::kDelta) {
      const DeltaPlan plan = plan_delta(delta_, run, row_.activations, limits_);
      DeltaArgs args = complete(delta_.arguments(base), run, plan);
      launch(delta_kernel(row_.activations, {delta_.value_type, plan.samples}), plan.grid_x,
             plan.grid_y, plan.warps, plan.shared_bytes, 1, &args, stream, kOp);
    } else if (row_.layout == Layout::kExpand) {
      const ExpandPlan plan = plan_expand(expand_, run, limits_);
      ExpandArgs args = complete(expand_.arguments(base), run, plan);
      launch(expand_kernel(row_.activations, {plan.tile, plan.vector_x}), plan.grid_x, plan.grid_y,
             plan.warps, plan.shared_bytes, plan.cluster, &args, stream, kOp);
    } else {
      const PanelPlan plan = plan_panel(panel_, run, row_.activations, limits_);
      PanelArgs args = complete(panel_.arguments(base), run, plan);
      launch(panel_kernel(row_.activations, plan.vector_x), plan.grid_x, plan.grid_y, plan.warps,
             plan.shared_bytes, panel_.cut.cluster, &args, stream, kOp);
    }
  }

  PackedInfo info() const {
    PackedInfo info;
    info.kernel = row_.name;
    info.batches = batches_;
    info.bytes = static_cast<int64_t>(placed_.memory().size());
    info.padding = padding();
    info.shared = placed_.shared;
    info.seconds = seconds_;
    return info;
  }

  const BatchRange& batches() const { return batches_; }

 private:
  double padding() const {
    switch (row_.layout) {
      case Layout::kStream:
        return stream_.padding;
      case Layout::kDelta:
        return delta_.padding;
      case Layout::kExpand:
        return expand_.padding;
      default:
        return panel_.padding;
    }
  }

  StreamKey stream_key(int samples, bool staged) const {
    return {stream_.value_type, stream_.index_bytes, samples, staged};
  }

  const KernelRow& row_;
  const BatchRange batches_;
  const DeviceLimits limits_;
  StreamLayout stream_;  // that of the row's layout is filled in
  PanelLayout panel_;
  ExpandLayout expand_;
  DeltaLayout delta_;
  PlacedLayer placed_;
  double seconds_ = 0;
};

class DispatchedGemm final : public PackedGemm {
 public:
  explicit DispatchedGemm(std::vector<Packed> kernels) : kernels_(std::move(kernels)) {}

  void run(const void* x, int64_t batch, void* y, const Epilogue& epilogue,
           void* stream) const override {
    if (batch < 1) return;
    // A batch outside the declared range is still computed, by the nearest kernel.
    const auto chosen =
        std::find_if(kernels_.begin(), kernels_.end() - 1,
                     [batch](const Packed& packed) { return batch <= packed.batches().max; });
    RunArguments run;
    run.x = x;
    run.residual = epilogue.residual;
    run.y = y;
    run.batch = batch;
    run.clip_min = epilogue.clip_min;
    run.clip_max = epilogue.clip_max;
    chosen->run(run, stream);
  }

  std::vector<PackedInfo> info() const override {
    std::vector<PackedInfo> infos;
    for (const Packed& packed : kernels_) infos.push_back(packed.info());
    return infos;
  }

 private:
  std::vector<Packed> kernels_;  // by rising batch
};

}  // namespace

std::unique_ptr<PackedGemm> PackedGemm::pack(const CondensedView& view, BatchRange batches,
                                             ValueType activations, int device) {
  const CurrentDevice current(device);
  const DeviceLimits limits = built_limits(device);
  const uint64_t hash = content_hash(view);
  const bool unproven = unproven_requested();
  // Counting weights and whether values fit take a pass, which only these kernels are worth.
  const LayerFacts facts = unproven ? LayerFacts::of(view, activations)
                                    : LayerFacts{activations, view.in_features, view.out_features};
  std::vector<Packed> kernels;
  for (const ServedBatches& served : select_kernels(facts, batches, limits, unproven))
    kernels.emplace_back(*served.row, served.batches, view, hash, device, limits);
  return std::make_unique<DispatchedGemm>(std::move(kernels));
}

std::unique_ptr<PackedGemm> pack_kernel(const CondensedView& view, BatchRange batches,
                                        ValueType activations, int device,
                                        const std::string& kernel) {
  const CurrentDevice current(device);
  const KernelRow& row = find_kernel(kernel, activations);
  const DeviceLimits limits = built_limits(device);
  refuse_impossible(row, LayerFacts::of(view, activations), limits);
  std::vector<Packed> kernels;
  kernels.emplace_back(row, batches, view, content_hash(view), device, limits);
  return std::make_unique<DispatchedGemm>(std::move(kernels));
}

}  // namespace fanin::cuda
