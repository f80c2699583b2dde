#include "ort/condensed_conv_cuda.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/condensed.h"
#include "cuda/conv.h"
#include "ort/condensed_conv_inputs.h"
#include "ort/cuda_device.h"
#include "ort/cuda_op.h"

namespace fanin::ort {
namespace {

// The layer of one node on one device. Read-only after creation: a session may be run from many
// threads.
class CudaConv {
 public:
  CudaConv(const CudaConvOp& op, const KernelInfo& info, std::string node);

  void compute(OrtKernelContext* context) const;
  const Runtime& runtime() const { return runtime_; }
  const std::string& node() const { return node_; }

 private:
  const Runtime& runtime_;
  const std::string node_;
  const ConvAttributes attributes_;
  const int device_;
  bool constant_residual_ = false;
  std::unique_ptr<cuda::PackedConv> packed_;
};

CudaConv::CudaConv(const CudaConvOp& op, const KernelInfo& info, std::string node)
    : runtime_(op.runtime),
      node_(std::move(node)),
      attributes_(read_conv_attributes(info)),
      device_(device_of(runtime_, info.get())) {
  const DeviceGuard guard(device_);
  const DeclaredConv declared = check_declared(runtime_, info, attributes_, constant_scalar);
  refuse_variable_weights(declared.variable_weights);
  constant_residual_ = info.constant(kResidual) != nullptr;
  const InputInfo residual = info.input(kResidual);
  if (!residual.dims.empty()) {
    const std::vector<int64_t> y = output_dims(declared.input, attributes_);
    adds_residual_on_device(residual.shape(), {y.data(), y.size()}, constant_residual_);
  }
  const WeightTensors weights(runtime_,
                              [&](Input index) { return host_constant(runtime_, info, index); });
  const CondensedView view = sound_view(weights, attributes_);
  packed_ = packed_on(device_, [&] {
    return cuda::PackedConv::pack(view, attributes_.geometry, value_type_of(op.type, kX), device_);
  });
  log_packed(info, node_, packed_->info(), device_);
}

void CudaConv::compute(OrtKernelContext* context) const {
  const Tensor x(runtime_, context_input(runtime_, context, kX));
  const ConvInput input = input_of(x.shape(), attributes_);
  const std::vector<int64_t> dims = output_dims(input, attributes_);
  const Shape y_shape{dims.data(), dims.size()};
  const Tensor residual(runtime_, context_input(runtime_, context, kResidual));
  const bool adds = adds_residual_on_device(residual.shape(), y_shape, constant_residual_);
  void* y = context_output(runtime_, context, y_shape);
  if (input.batch == 0) return;

  void* stream = nullptr;
  check(runtime_.api, runtime_.api.KernelContext_GetGPUComputeStream(context, &stream));
  const DeviceGuard guard(device_);
  packed_->run(
      x.data<void>(), input, y,
      {{adds ? residual.data<void>() : nullptr, attributes_.clip.min, attributes_.clip.max},
       attributes_.gate},
      stream);
}

}  // namespace

CudaConvOp::CudaConvOp(const Runtime& owner, ElementType activations) : ConvOp(owner, activations) {
  set_cuda(*this);
  set_kernel<CudaConvOp, CudaConv>(*this);
}

}  // namespace fanin::ort
