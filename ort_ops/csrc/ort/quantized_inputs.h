// Shared by the ops on 8-bit integers: their scales, zero points and biases, which come with each
// run, or are read once if they are constant. All functions throw Error with a message for the
// user.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/condensed.h"
#include "core/quantized_gemm.h"
#include "ort/condensed_op.h"
#include "ort/kernel_info.h"
#include "ort/node_inputs.h"
#include "ort/tensor.h"

namespace fanin::ort {

// Where an op has its inputs; kNoInput for those that it lacks.
struct QuantizedInputs {
  LayerInputs layer;
  size_t values_scale;
  size_t x_scale = kNoInput;
  size_t x_zero_point = kNoInput;
  size_t y_scale = kNoInput;
  size_t y_zero_point = kNoInput;
  size_t residual_scale = kNoInput;
  size_t residual_zero_point = kNoInput;
};

inline constexpr InputSpec kQLinearInputs[] = {
    {"X", TypedAs::kX, kUndefined},
    {"x_scale", TypedAs::kItself, kFloat},
    {"x_zero_point", TypedAs::kX, kUndefined},
    {"values", TypedAs::kItself, kInt8},
    {"values_scale", TypedAs::kItself, kFloat},
    {"indices", TypedAs::kItself, kUndefined},
    {"bias", TypedAs::kItself, kInt32},
    {"rows", TypedAs::kItself, kInt32},
    {"y_scale", TypedAs::kItself, kFloat},
    {"y_zero_point", TypedAs::kY, kUndefined},
    {"residual", TypedAs::kY, kUndefined},
    {"residual_scale", TypedAs::kItself, kFloat},
    {"residual_zero_point", TypedAs::kY, kUndefined},
};
inline constexpr size_t kQLinearInputCount = sizeof kQLinearInputs / sizeof kQLinearInputs[0];
inline constexpr QuantizedInputs kQLinear{{3, 5, 6, 7, 10, false}, 4, 1, 2, 8, 9, 11, 12};
inline constexpr ActivationTypes kQLinearTypes[] = {
    {kUint8, kUint8}, {kUint8, kInt8}, {kInt8, kUint8}, {kInt8, kInt8}};

// What turns the sums of a run into Y.
struct Quantization {
  // [outputs]: x_scale * values_scale / y_scale, without the scales that the op lacks.
  std::vector<float> multipliers;
  std::vector<int32_t> bias;      // [outputs], or empty
  std::vector<float> float_bias;  // likewise
  int32_t x_zero_point = 0;
  int32_t y_zero_point = 0;
  int32_t residual_zero_point = 0;
  float residual_multiplier = 1.0f;
  Clip clip;  // in units of Y
};

// The inputs of one run besides X, the residual and the weights.
class QuantizedRunInputs {
 public:
  explicit QuantizedRunInputs(const Quantization* constant) : constant_(constant) {}
  explicit QuantizedRunInputs(Quantization read) : own_(std::move(read)) {}

  const Quantization& get() const { return constant_ ? *constant_ : own_; }

 private:
  const Quantization* constant_ = nullptr;
  Quantization own_;
};

// By the position of the input; null where it is not needed.
using InputValues = std::array<const OrtValue*, kQLinearInputCount>;

// The scales, zero points and bias of a node: read at creation if all of them are constant,
// otherwise at each run.
class NodeQuantization {
 public:
  // Checks those inputs that are constant. `schema` and `inputs` must outlive it.
  NodeQuantization(const KernelInfo& info, const OpSchema& schema, const QuantizedInputs& inputs,
                   const WeightSizes& sizes, const Clip& clip);

  // Checks declared shapes of scales and zero points.
  void check_declared(const Runtime& runtime, const KernelInfo& info,
                      const DeclaredInputs& declared) const;

  // What a run reads; `value_of(input)` gives an OrtValue. Lives as long as this object.
  template <typename ValueOf>
  QuantizedRunInputs of_run(const Runtime& runtime, const ValueOf& value_of) const {
    if (constant_) return QuantizedRunInputs(&*constant_);
    InputValues values{};
    for (const size_t input : positions())
      if (input != kNoInput) values[input] = value_of(input);
    return QuantizedRunInputs(read(runtime, values));
  }

 private:
  std::array<size_t, 8> positions() const {
    return {
        inputs_.x_scale, inputs_.x_zero_point, inputs_.values_scale,   inputs_.layer.bias,
        inputs_.y_scale, inputs_.y_zero_point, inputs_.residual_scale, inputs_.residual_zero_point};
  }
  Quantization read(const Runtime& runtime, const InputValues& values) const;
  // The scales of an input, checked.
  std::vector<float> scales(const Runtime& runtime, const InputValues& values, size_t input) const;
  float scale(const Runtime& runtime, const InputValues& values, size_t input) const;
  int32_t zero_point(const Runtime& runtime, const InputValues& values, size_t input) const;

  const OpSchema& schema_;
  const QuantizedInputs& inputs_;
  WeightSizes sizes_;
  Clip clip_;
  std::optional<Quantization> constant_;
};

// The tensors of the packed weights of a node.
class QuantizedWeightTensors {
 public:
  QuantizedWeightTensors(const Runtime& runtime, const OrtValue* values, const OrtValue* indices,
                         const OrtValue* rows)
      : values_(runtime, values), indices_(runtime, indices), rows_(runtime, rows) {}

  // A view of them, whose shapes are checked and whose contents are not.
  CondensedView view(const WeightSizes& sizes) const;

 private:
  Tensor values_, indices_, rows_;
};

// The weights of an op with that layer.
template <const QuantizedInputs& kInputs>
struct QuantizedWeights : QuantizedWeightTensors {
  template <typename ValueOf>
  QuantizedWeights(const Runtime& runtime, const ValueOf& value_of)
      : QuantizedWeightTensors(runtime, value_of(kInputs.layer.values),
                               value_of(kInputs.layer.indices), value_of(kInputs.layer.rows)) {}
};

// The type of X or Y for kernels.
QuantizedType quantized_type(ElementType type);

// The epilogue of a run, whose pointers are those of its arguments. Refuses the zero point of a
// residual that is not there.
QuantizedEpilogue epilogue_of(const Quantization& quantization, const void* residual,
                              ElementType y_type);

}  // namespace fanin::ort
