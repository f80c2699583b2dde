#include "ort/condensed_gemm.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "core/condensed.h"
#include "core/float16_run.h"
#include "core/gemm.h"
#include "core/thread_executor.h"
#include "ort/condensed_gemm_inputs.h"
#include "ort/executor.h"
#include "ort/gemm_op.h"
#include "ort/kernel_info.h"
#include "ort/status.h"
#include "ort/tensor.h"
#include "ort/threads.h"

namespace fanin::ort {
namespace {

// The layer of one node. Read-only after creation: a session may be run from many threads.
class CondensedGemm {
 public:
  CondensedGemm(const Runtime& runtime, const KernelInfo& info, std::string node,
                std::optional<int> threads);

  void compute(OrtKernelContext* context) const;
  const Runtime& runtime() const { return runtime_; }
  const std::string& node() const { return node_; }

 private:
  const Runtime& runtime_;
  const std::string node_;
  GemmAttributes attributes_;
  size_t concurrency_ = 1;
  BatchRange batches_;
  std::unique_ptr<PackedGemm> packed_;  // null: the weights are not constant
};

CondensedGemm::CondensedGemm(const Runtime& runtime, const KernelInfo& info, std::string node,
                             std::optional<int> threads)
    : runtime_(runtime), node_(std::move(node)), attributes_(read_attributes(info)) {
  if (const std::optional<int> told = threads_of_session(runtime, info.get())) threads = told;
  concurrency_ =
      static_cast<size_t>(std::min(threads.value_or(available_cpus()), available_cpus()));

  const DeclaredInputs declared = check_declared(runtime, info, attributes_);
  batches_ = declared.batches;
  if (!declared.variable_weights.empty()) {
    info.log(kWarning,
             node_ + ": not constant: " + declared.variable_weights +
                 "; so nothing is packed, and every run validates the weights and takes the slow "
                 "plain path; make them initializers that are not graph inputs");
    return;
  }
  const WeightTensors weights(runtime, [&](Input index) { return info.constant(index); });
  const CondensedView view = weights.checked_view(attributes_);
  packed_ = PackedGemm::pack(view, batches_, select_isa(), ThreadExecutor(concurrency_));
  for (const PackedInfo& layout : packed_->info())
    info.log(kInfo, node_ + ": " + packing_report(layout));
}

void CondensedGemm::compute(OrtKernelContext* context) const {
  const Tensor x(runtime_, context_input(runtime_, context, kX));
  check_x(x.shape(), attributes_);
  const int64_t batch = batch_of(x.shape());

  const std::vector<int64_t> dims = output_dims(x.shape(), attributes_);
  const Shape y_shape{dims.data(), dims.size()};
  const Tensor residual(runtime_, context_input(runtime_, context, kResidual));
  const void* add = residual_data(residual, y_shape);
  void* y = context_output(runtime_, context, y_shape);

  // Variable weights are checked for an empty batch, too.
  std::optional<WeightTensors> variable;
  CondensedView view;
  if (!packed_) {
    variable.emplace(runtime_,
                     [&](Input index) { return context_input(runtime_, context, index); });
    view = variable->checked_view(attributes_);
  }
  if (batch == 0) return;
  if (packed_) check_batch(batch, batches_, x.shape());
  const SessionExecutor executor(runtime_, context, concurrency_);
  const auto run = [&](const Float32Slice& slice) {
    const Epilogue epilogue{slice.residual, attributes_.clip_min, attributes_.clip_max};
    if (packed_)
      packed_->run(slice.x, slice.batch, slice.y, epilogue, executor);
    else
      run_plain(view, slice.x, slice.batch, slice.y, epilogue);
  };
  if (x.type() == kFloat16)
    run_float16({x.data<uint16_t>(), static_cast<const uint16_t*>(add), static_cast<uint16_t*>(y),
                 batch, attributes_.in_features, attributes_.out_features},
                executor, run);
  else
    run({x.data<float>(), static_cast<const float*>(add), static_cast<float*>(y), batch});
}

// Why a machine that may have a GPU runs this op on its CPU: once, not for every node.
void tell_once(const KernelInfo& info, const std::string& notice) {
  static std::atomic<bool> told{false};
  if (!notice.empty() && !told.exchange(true)) info.log(kWarning, notice);
}

// The callbacks. None lets an exception out.

OrtStatus* create(const OrtCustomOp* op, const OrtApi*, const OrtKernelInfo* raw,
                  void** kernel) noexcept {
  const auto& self = *static_cast<const CondensedGemmOp*>(op);
  std::string node = kGemmName;
  return guarded(self.runtime.api, node, [&] {
    const KernelInfo info(self.runtime, raw);
    node = info.node(kGemmName);
    *kernel = new CondensedGemm(self.runtime, info, node, self.threads);
    tell_once(info, self.cuda_notice);
  });
}

OrtStatus* compute(void* kernel, OrtKernelContext* context) noexcept {
  const auto& self = *static_cast<const CondensedGemm*>(kernel);
  return guarded(self.runtime().api, self.node(), [&] { self.compute(context); });
}

void destroy(void* kernel) noexcept { delete static_cast<CondensedGemm*>(kernel); }

}  // namespace

CondensedGemmOp::CondensedGemmOp(const Runtime& owner, ElementType activations,
                                 std::optional<int> session_threads, const std::string& notice)
    : GemmOp(owner, activations), threads(session_threads), cuda_notice(notice) {
  CreateKernelV2 = create;
  KernelComputeV2 = compute;
  KernelDestroy = destroy;
}

}  // namespace fanin::ort
