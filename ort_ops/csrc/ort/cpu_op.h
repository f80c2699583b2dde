// The ops for the CPU provider: a template over the op, see ops.h.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/thread_executor.h"
#include "ort/activations.h"
#include "ort/condensed_op.h"
#include "ort/executor.h"
#include "ort/kernel_info.h"
#include "ort/node_inputs.h"
#include "ort/runtime.h"
#include "ort/threads.h"

namespace fanin::ort {

// The settings with which the ops are registered.
struct CpuSettings {
  ThreadSettings threads;   // of the session, as they are at registration
  std::string cuda_notice;  // the log's warning about missing CUDA kernels; may be empty
};

// The threads that a kernel may use.
struct Concurrency {
  size_t threads;  // at most the CPUs of this process
  DispatchCost dispatch;
};

// Throws Error for an invalid setting of the session.
Concurrency concurrency_of(const Runtime& runtime, const KernelInfo& info,
                           const CpuSettings& settings);

// Logs why a machine that may have a GPU runs these ops on its CPU, once per process.
void tell_cuda_notice_once(const KernelInfo& info, const CpuSettings& settings);

// Lets the runtime give a node the memory of that input for Y if nothing else reads it: its lines
// are in cache, while those of another buffer would have to be fetched before they can be written.
template <size_t kInput>
void allow_y_over_input(CondensedOp& op) {
  if (!op.runtime.has_api_18) return;
  op.version = kInplaceApiVersion;
  op.GetMayInplace = [](int** inputs, int** outputs) noexcept -> size_t {
    static int input = kInput, output = 0;  // the runtime only reads them
    *inputs = &input;
    *outputs = &output;
    return 1;
  };
  op.ReleaseMayInplace = [](int*, int*) noexcept {};
}

template <typename Op>
class CpuKernel;

template <typename Op>
struct CpuOp : CondensedOp {
  // `told` must outlive the op. The types are one of Op::kCpuTypes.
  CpuOp(const Runtime& owner, const ActivationTypes& activations, const CpuSettings& told)
      : CondensedOp(owner, activations, Op::kSchema), settings(told) {
    set_kernel<CpuOp, CpuKernel<Op>>(*this);
    if (Op::kWritesOverResidual) allow_y_over_input<Op::kResidualInput>(*this);
  }

  const CpuSettings& settings;
};

// The layer of one node. Read-only after creation: a session may be run from many threads.
template <typename Op>
class CpuKernel {
 public:
  CpuKernel(const CpuOp<Op>& op, const KernelInfo& info, std::string node)
      : runtime_(op.runtime),
        types_(op.types),
        node_(std::move(node)),
        op_(info),
        concurrency_(concurrency_of(runtime_, info, op.settings)) {
    const auto declared = op_.check_declared(runtime_, info, host_scalar);
    batches_ = op_.batches(declared.shape(kX));
    tell_cuda_notice_once(info, op.settings);
    if (!declared.variable_weights.empty()) {
      warn_of_variable_weights(info, node_, declared.variable_weights);
      return;
    }
    const typename Op::Weights weights(runtime_,
                                       [&](size_t index) { return info.constant(index); });
    packed_ = op_.pack(op_.sound_view(weights), batches_, ThreadExecutor(concurrency_.threads));
    for (const PackedInfo& layout : packed_->info())
      info.log(kInfo, node_ + ": " + packing_report(layout));
  }

  const Runtime& runtime() const { return runtime_; }
  const std::string& node() const { return node_; }

  void compute(OrtKernelContext* context) const {
    const auto input = [&](size_t index) { return context_input(runtime_, context, index); };
    const Tensor x(runtime_, input(kX));
    op_.check_x(x.shape());
    const auto size = op_.run_size(x.shape());

    const std::vector<int64_t> dims = op_.output_dims(x.shape());
    const void* add = nullptr;
    if constexpr (Op::kResidualInput != kNoInput)
      add = residual_data(Tensor(runtime_, input(Op::kResidualInput)), shape_of(dims));
    void* y = context_output(runtime_, context, shape_of(dims));

    // Inputs that are not constant are checked even for an empty batch.
    const auto others = op_.run_inputs(runtime_, input);
    std::optional<typename Op::Weights> variable;
    typename Op::View view;
    if (!packed_) {
      variable.emplace(runtime_, input);
      view = op_.sound_view(*variable);
    }
    if (size.batch == 0) return;
    if (packed_) check_batch(size.batch, batches_, x.shape());
    op_.run(packed_.get(), view, size, others, {x.template data<void>(), add, y, types_},
            SessionExecutor(runtime_, context, concurrency_.threads, concurrency_.dispatch));
  }

 private:
  const Runtime& runtime_;
  const ActivationTypes types_;
  const std::string node_;
  const Op op_;
  const Concurrency concurrency_;
  BatchRange batches_;
  // Null: the weights are not constant.
  decltype(std::declval<Op>().pack({}, {}, std::declval<Executor>())) packed_;
};

}  // namespace fanin::ort
