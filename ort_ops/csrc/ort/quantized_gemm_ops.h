// The fully connected operators on 8-bit integers, version 1 (docs/op.md): QLinearCondensedGemm,
// CondensedGemmIntegerToFloat and DynamicQuantizeCondensedGemm. ops.h describes the members; all
// checks throw Error with a message for the user.
#pragma once

#include <memory>
#include <optional>

#include "core/quantized_gemm.h"
#include "ort/activations.h"
#include "ort/gemm_shape.h"
#include "ort/quantized_inputs.h"

namespace fanin::ort {

// What the three have in common.
class QuantizedGemm : public GemmShape {
 public:
  static constexpr bool kWritesOverResidual = true;
  using View = CondensedView;

  CondensedView sound_view(const QuantizedWeightTensors& weights) const;

  std::unique_ptr<PackedQuantizedGemm> pack(const CondensedView& view, const BatchRange& batches,
                                            const Executor& executor) const {
    return PackedQuantizedGemm::pack(view, batches, select_isa(), executor);
  }

  template <typename ValueOf>
  QuantizedRunInputs run_inputs(const Runtime& runtime, const ValueOf& value_of) const {
    return quantization_.of_run(runtime, value_of);
  }

  // Without a packed layer, the plain kernel runs on `view`.
  void run(const PackedQuantizedGemm* packed, const CondensedView& view, const RunSize& size,
           const QuantizedRunInputs& inputs, const Activations& arrays,
           const Executor& executor) const;

 protected:
  QuantizedGemm(const KernelInfo& info, const OpSchema& schema, const QuantizedInputs& inputs);

  DeclaredInputs check_quantization(const Runtime& runtime, const KernelInfo& info,
                                    DeclaredInputs declared) const {
    quantization_.check_declared(runtime, info, declared);
    return declared;
  }

 private:
  NodeQuantization quantization_;
};

class QLinearCondensedGemm : public QuantizedGemm {
 public:
  static const OpSchema kSchema;
  static constexpr const auto& kCpuTypes = kQLinearTypes;
  static constexpr LayerInputs kLayer = kQLinear.layer;
  static constexpr size_t kResidualInput = kLayer.residual;
  using Weights = QuantizedWeights<kQLinear>;

  explicit QLinearCondensedGemm(const KernelInfo& info) : QuantizedGemm(info, kSchema, kQLinear) {}

  DeclaredInputs check_declared(const Runtime& runtime, const KernelInfo& info,
                                ReadScalar read) const {
    return check_quantization(runtime, info, check_declared_inputs(runtime, info, *this, read));
  }
};

inline constexpr QuantizedInputs kIntegerToFloat{{3, 5, 6, 7, 8, false}, 4, 1, 2};

class CondensedGemmIntegerToFloat : public QuantizedGemm {
 public:
  static const OpSchema kSchema;
  static constexpr ActivationTypes kCpuTypes[] = {{kUint8, kFloat}, {kInt8, kFloat}};
  static constexpr LayerInputs kLayer = kIntegerToFloat.layer;
  static constexpr size_t kResidualInput = kLayer.residual;
  using Weights = QuantizedWeights<kIntegerToFloat>;

  explicit CondensedGemmIntegerToFloat(const KernelInfo& info)
      : QuantizedGemm(info, kSchema, kIntegerToFloat) {}

  DeclaredInputs check_declared(const Runtime& runtime, const KernelInfo& info,
                                ReadScalar read) const {
    return check_quantization(runtime, info, check_declared_inputs(runtime, info, *this, read));
  }
};

inline constexpr QuantizedInputs kDynamicQuantize{{1, 3, 4, 5, 6, false}, 2};

class DynamicQuantizeCondensedGemm : public QuantizedGemm {
 public:
  static const OpSchema kSchema;
  static constexpr ActivationTypes kCpuTypes[] = {{kFloat, kFloat}};
  static constexpr LayerInputs kLayer = kDynamicQuantize.layer;
  static constexpr size_t kResidualInput = kLayer.residual;
  using Weights = QuantizedWeights<kDynamicQuantize>;

  explicit DynamicQuantizeCondensedGemm(const KernelInfo& info);

  DeclaredInputs check_declared(const Runtime& runtime, const KernelInfo& info,
                                ReadScalar read) const {
    return check_quantization(runtime, info, check_declared_inputs(runtime, info, *this, read));
  }

  // Quantizes X first.
  void run(const PackedQuantizedGemm* packed, const CondensedView& view, const RunSize& size,
           const QuantizedRunInputs& inputs, const Activations& arrays,
           const Executor& executor) const;

 private:
  bool per_row_;
  Isa isa_;
};

}  // namespace fanin::ort
