#include "ort/condensed_gemm.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/float16_run.h"
#include "core/gemm.h"
#include "core/thread_executor.h"
#include "ort/condensed_gemm_inputs.h"
#include "ort/executor.h"

namespace fanin::ort {
namespace {

// The layer of one node. Read-only after creation: a session may be run from many threads.
class CondensedGemm {
 public:
  CondensedGemm(const CondensedGemmOp& op, const KernelInfo& info, std::string node);

  void compute(OrtKernelContext* context) const;
  const Runtime& runtime() const { return runtime_; }
  const std::string& node() const { return node_; }

 private:
  const Runtime& runtime_;
  const std::string node_;
  const GemmAttributes attributes_;
  const size_t concurrency_;
  BatchRange batches_;
  std::unique_ptr<PackedGemm> packed_;  // null: the weights are not constant
};

CondensedGemm::CondensedGemm(const CondensedGemmOp& op, const KernelInfo& info, std::string node)
    : runtime_(op.runtime),
      node_(std::move(node)),
      attributes_(read_gemm_attributes(info)),
      concurrency_(concurrency_of(runtime_, info, op.settings)) {
  const DeclaredGemm declared = check_declared(runtime_, info, attributes_);
  batches_ = declared.batches;
  tell_cuda_notice_once(info, op.settings);
  if (!declared.variable_weights.empty()) {
    warn_of_variable_weights(info, node_, declared.variable_weights);
    return;
  }
  const WeightTensors weights(runtime_, [&](Input index) { return info.constant(index); });
  const CondensedView view = sound_view(weights, attributes_);
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
    view = sound_view(*variable, attributes_);
  }
  if (batch == 0) return;
  if (packed_) check_batch(batch, batches_, x.shape());
  const SessionExecutor executor(runtime_, context, concurrency_);
  const auto run = [&](const Float32Slice& slice) {
    const Epilogue epilogue{slice.residual, attributes_.clip.min, attributes_.clip.max};
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

}  // namespace

CondensedGemmOp::CondensedGemmOp(const Runtime& owner, ElementType activations,
                                 const CpuSettings& told)
    : GemmOp(owner, activations), settings(told) {
  set_kernel<CondensedGemmOp, CondensedGemm>(*this);
}

}  // namespace fanin::ort
