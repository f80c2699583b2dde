#include "ort/condensed_conv.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/conv.h"
#include "core/float16_run.h"
#include "core/thread_executor.h"
#include "ort/condensed_conv_inputs.h"
#include "ort/executor.h"

namespace fanin::ort {
namespace {

// The layer of one node. Read-only after creation: a session may be run from many threads.
class CondensedConv {
 public:
  CondensedConv(const CondensedConvOp& op, const KernelInfo& info, std::string node);

  void compute(OrtKernelContext* context) const;
  const Runtime& runtime() const { return runtime_; }
  const std::string& node() const { return node_; }

 private:
  const Runtime& runtime_;
  const std::string node_;
  const ConvAttributes attributes_;
  const size_t concurrency_;
  std::unique_ptr<PackedConv> packed_;  // null: the weights are not constant
};

CondensedConv::CondensedConv(const CondensedConvOp& op, const KernelInfo& info, std::string node)
    : runtime_(op.runtime),
      node_(std::move(node)),
      attributes_(read_conv_attributes(info)),
      concurrency_(concurrency_of(runtime_, info, op.settings)) {
  const DeclaredConv declared = check_declared(runtime_, info, attributes_);
  tell_cuda_notice_once(info, op.settings);
  if (!declared.variable_weights.empty()) {
    warn_of_variable_weights(info, node_, declared.variable_weights);
    return;
  }
  const WeightTensors weights(runtime_, [&](Input index) { return info.constant(index); });
  const CondensedView view = sound_view(weights, attributes_);
  packed_ =
      PackedConv::pack(view, attributes_.geometry, select_isa(), ThreadExecutor(concurrency_));
  for (const PackedInfo& layout : packed_->info())
    info.log(kInfo, node_ + ": " + packing_report(layout));
}

void CondensedConv::compute(OrtKernelContext* context) const {
  const Tensor x(runtime_, context_input(runtime_, context, kX));
  const ConvInput input = input_of(x.shape(), attributes_);
  const ConvGeometry& geometry = attributes_.geometry;

  const std::vector<int64_t> dims = output_dims(input, attributes_);
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
  if (input.batch == 0) return;
  const SessionExecutor executor(runtime_, context, concurrency_);
  const auto run = [&](const Float32Slice& slice) {
    const ConvEpilogue epilogue{{slice.residual, attributes_.clip.min, attributes_.clip.max},
                                attributes_.gate};
    const ConvInput part{slice.batch, input.height, input.width};
    if (packed_)
      packed_->run(slice.x, part, slice.y, epilogue, executor);
    else
      run_plain_conv(view, geometry, slice.x, part, slice.y, epilogue);
  };
  if (x.type() == kFloat16) {
    const int64_t pixels =
        geometry.output_size(0, input.height) * geometry.output_size(1, input.width);
    run_float16({x.data<uint16_t>(), static_cast<const uint16_t*>(add), static_cast<uint16_t*>(y),
                 input.batch, geometry.in_channels * input.height * input.width,
                 geometry.out_channels * pixels},
                executor, run);
  } else {
    run({x.data<float>(), static_cast<const float*>(add), static_cast<float*>(y), input.batch});
  }
}

}  // namespace

CondensedConvOp::CondensedConvOp(const Runtime& owner, ElementType activations,
                                 const CpuSettings& told)
    : ConvOp(owner, activations), settings(told) {
  set_kernel<CondensedConvOp, CondensedConv>(*this);
  if (!owner.has_api_18) return;
  // Y takes the residual's memory where nothing else reads that: it is in cache by then, while
  // lines of another buffer would have to be brought in before they can be written.
  version = kInplaceApiVersion;
  GetMayInplace = [](int** inputs, int** outputs) noexcept -> size_t {
    static int input = kResidual, output = 0;  // the runtime only reads them
    *inputs = &input;
    *outputs = &output;
    return 1;
  };
  ReleaseMayInplace = [](int*, int*) noexcept {};
}

}  // namespace fanin::ort
