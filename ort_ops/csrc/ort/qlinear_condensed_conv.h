// The operator ai.fanin::QLinearCondensedConv, version 1 (docs/op.md). ops.h describes the members;
// all checks throw Error with a message for the user.
#pragma once

#include <memory>
#include <optional>

#include "core/quantized_conv.h"
#include "ort/activations.h"
#include "ort/conv_shape.h"
#include "ort/quantized_inputs.h"

namespace fanin::ort {

class QLinearCondensedConv : public ConvShape {
 public:
  static const OpSchema kSchema;
  static constexpr const auto& kCpuTypes = kQLinearTypes;
  static constexpr LayerInputs kLayer = kQLinear.layer;
  static constexpr size_t kResidualInput = kLayer.residual;
  static constexpr bool kWritesOverResidual = true;

  using Weights = QuantizedWeights<kQLinear>;
  using View = CondensedView;

  explicit QLinearCondensedConv(const KernelInfo& info);

  DeclaredInputs check_declared(const Runtime& runtime, const KernelInfo& info,
                                ReadScalar read) const;
  CondensedView sound_view(const QuantizedWeightTensors& weights) const;

  std::unique_ptr<PackedQuantizedConv> pack(const CondensedView& view, const BatchRange&,
                                            const Executor& executor) const {
    return PackedQuantizedConv::pack(view, geometry_, select_isa(), executor);
  }

  template <typename ValueOf>
  QuantizedRunInputs run_inputs(const Runtime& runtime, const ValueOf& value_of) const {
    return quantization_.of_run(runtime, value_of);
  }

  // Without a packed layer, the plain kernel runs on `view`.
  void run(const PackedQuantizedConv* packed, const CondensedView& view, const RunSize& size,
           const QuantizedRunInputs& inputs, const Activations& arrays,
           const Executor& executor) const;

 private:
  NodeQuantization quantization_;
};

}  // namespace fanin::ort
