// The ops for the CUDA provider: a template over the op, see ops.h. Includes no CUDA header.
#pragma once

#include <new>
#include <string>
#include <utility>
#include <vector>

#include "core/gemm.h"
#include "ort/activations.h"
#include "ort/condensed_op.h"
#include "ort/cuda_device.h"
#include "ort/kernel_info.h"
#include "ort/node_inputs.h"
#include "ort/status.h"

namespace fanin::ort {

// Registers an op for the CUDA provider. Its weights stay on the host, where packing reads them: a
// run needs none of them.
void set_cuda(CondensedOp& op);

// A constant's first element, in host or device memory. Only at creation.
float constant_scalar(const Tensor& tensor);

// The device of the session's CUDA provider, which is that of its allocator. The runtime must have
// API 18.
int device_of(const Runtime& runtime, const OrtKernelInfo* info);

// Refuses weights that are not constant; `names` as in "values, bias", empty for none.
void refuse_variable_weights(const std::string& names);

// A constant weight that packing can read. The ops request their weights on the host.
const OrtValue* host_constant(const CondensedOp& op, const KernelInfo& info, size_t index);

// Whether the residual is added, see adds_residual. A run never reads the residual on the host,
// which would wait for the device. So a residual that stands for none must be a constant that was
// checked to be 0 at creation; any other is refused.
bool adds_residual_on_device(const Shape& residual, const Shape& y, bool is_constant);

// Whether the session's CUDA provider computes float32 products in TF32: its option use_tf32, which
// is on by default. False where the runtime does not say. Only in a run.
bool allows_tf32(const Runtime& runtime, const OrtKernelContext* context);

// The log line about a packed layer.
void log_packed(const KernelInfo& info, const std::string& node,
                const std::vector<PackedInfo>& layouts, int device);

// Calls pack(); its error keeps the message of a std::bad_alloc, which guarded() would drop.
template <typename Pack>
auto packed_on(int device, const Pack& pack) {
  try {
    return pack();
  } catch (const std::bad_alloc& error) {
    throw Error(kFail, "out of memory on device " + std::to_string(device) + ": " + error.what());
  }
}

template <typename Op>
class CudaKernel;

template <typename Op>
struct CudaOp : CondensedOp {
  // The type is one of Op::kCudaTypes. The runtime must have API 18.
  CudaOp(const Runtime& owner, ElementType activations)
      : CondensedOp(owner, {activations, activations}, Op::kSchema) {
    set_cuda(*this);
    set_kernel<CudaOp, CudaKernel<Op>>(*this);
  }
};

// The layer of one node on one device. Read-only after creation: a session may be run from many
// threads.
template <typename Op>
class CudaKernel {
 public:
  CudaKernel(const CudaOp<Op>& op, const KernelInfo& info, std::string node)
      : runtime_(op.runtime),
        node_(std::move(node)),
        op_(info),
        device_(device_of(runtime_, info.get())) {
    const DeviceGuard guard(device_);
    const auto declared = op_.check_declared(runtime_, info, constant_scalar);
    refuse_variable_weights(declared.variable_weights);
    batches_ = op_.batches(declared.shape(kX));
    if constexpr (Op::kResidualInput != kNoInput) {
      constant_residual_ = info.constant(Op::kResidualInput) != nullptr;
      const Shape residual = declared.shape(Op::kResidualInput);
      if (!declared.y_dims.empty() && residual.rank > 0)
        adds_residual_on_device(residual, shape_of(declared.y_dims), constant_residual_);
    }
    const typename Op::Weights weights(
        runtime_, [&](size_t index) { return host_constant(op, info, index); });
    const typename Op::View view = op_.sound_view(weights);
    packed_ = packed_on(device_, [&] {
      return op_.pack_on_device(view, batches_, value_type_of(op.types.x, "X"), device_);
    });
    log_packed(info, node_, packed_->info(), device_);
  }

  const Runtime& runtime() const { return runtime_; }
  const std::string& node() const { return node_; }

  void compute(OrtKernelContext* context) const {
    const Tensor x(runtime_, context_input(runtime_, context, kX));
    op_.check_x(x.shape());
    const auto size = op_.run_size(x.shape());

    const std::vector<int64_t> dims = op_.output_dims(x.shape());
    const void* add = nullptr;
    if constexpr (Op::kResidualInput != kNoInput) {
      const Tensor residual(runtime_, context_input(runtime_, context, Op::kResidualInput));
      if (adds_residual_on_device(residual.shape(), shape_of(dims), constant_residual_))
        add = residual.template data<void>();
    }
    void* y = context_output(runtime_, context, shape_of(dims));
    if (size.batch == 0) return;
    check_batch(size.batch, batches_, x.shape());

    void* stream = nullptr;
    check(runtime_.api, runtime_.api.KernelContext_GetGPUComputeStream(context, &stream));
    const DeviceGuard guard(device_);
    const bool tf32 = x.type() == kFloat && allows_tf32(runtime_, context);
    op_.run_on_device(*packed_, size, {x.template data<void>(), add, y, {x.type(), x.type()}},
                      stream, tf32);
  }

 private:
  const Runtime& runtime_;
  const std::string node_;
  const Op op_;
  const int device_;
  bool constant_residual_ = false;
  BatchRange batches_;
  decltype(std::declval<Op>().pack_on_device({}, {}, {}, 0)) packed_;
};

}  // namespace fanin::ort
