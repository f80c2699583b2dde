#include "ort/quantized_gemm_ops.h"

#include <utility>

#include "core/dynamic_quantize.h"
#include "core/scratch.h"

namespace fanin::ort {
namespace {

constexpr InputSpec kIntegerToFloatInputs[] = {
    {"X", TypedAs::kX, kUndefined},
    {"x_scale", TypedAs::kItself, kFloat},
    {"x_zero_point", TypedAs::kX, kUndefined},
    {"values", TypedAs::kItself, kInt8},
    {"values_scale", TypedAs::kItself, kFloat},
    {"indices", TypedAs::kItself, kUndefined},
    {"bias", TypedAs::kItself, kFloat},
    {"rows", TypedAs::kItself, kInt32},
    {"residual", TypedAs::kY, kUndefined},
};

constexpr InputSpec kDynamicQuantizeInputs[] = {
    {"X", TypedAs::kX, kUndefined},
    {"values", TypedAs::kItself, kInt8},
    {"values_scale", TypedAs::kItself, kFloat},
    {"indices", TypedAs::kItself, kUndefined},
    {"bias", TypedAs::kItself, kFloat},
    {"rows", TypedAs::kItself, kInt32},
    {"residual", TypedAs::kY, kUndefined},
};

void infer_float(const ShapeInference& node) { infer_gemm_shape(node, kFloat); }

void run_on(const PackedQuantizedGemm* packed, const CondensedView& view, const QuantizedInput& x,
            int64_t batch, void* y, const QuantizedEpilogue& epilogue, const Executor& executor) {
  if (packed)
    packed->run(x, batch, y, epilogue, executor);
  else
    run_plain_quantized(view, x, batch, y, epilogue);
}

}  // namespace

const OpSchema QLinearCondensedGemm::kSchema = {
    "QLinearCondensedGemm", kQLinearInputs, kQLinearInputCount, [](const ShapeInference& node) {
      infer_gemm_shape(node, node.input(kQLinear.y_zero_point).type);
    }};

const OpSchema CondensedGemmIntegerToFloat::kSchema = {
    "CondensedGemmIntegerToFloat", kIntegerToFloatInputs,
    sizeof kIntegerToFloatInputs / sizeof kIntegerToFloatInputs[0], infer_float};

const OpSchema DynamicQuantizeCondensedGemm::kSchema = {
    "DynamicQuantizeCondensedGemm", kDynamicQuantizeInputs,
    sizeof kDynamicQuantizeInputs / sizeof kDynamicQuantizeInputs[0], infer_float};

QuantizedGemm::QuantizedGemm(const KernelInfo& info, const OpSchema& schema,
                             const QuantizedInputs& inputs)
    : GemmShape(info), quantization_(info, schema, inputs, sizes(), clip_) {}

CondensedView QuantizedGemm::sound_view(const QuantizedWeightTensors& weights) const {
  const CondensedView view = weights.view(sizes());
  refuse_unless_empty(validate_quantized(view));
  return view;
}

void QuantizedGemm::run(const PackedQuantizedGemm* packed, const CondensedView& view,
                        const RunSize& size, const QuantizedRunInputs& inputs,
                        const Activations& arrays, const Executor& executor) const {
  const Quantization& quantization = inputs.get();
  const QuantizedInput x{arrays.x, quantized_type(arrays.types.x), quantization.x_zero_point};
  run_on(packed, view, x, size.batch, arrays.y,
         epilogue_of(quantization, arrays.residual, arrays.types.y), executor);
}

DynamicQuantizeCondensedGemm::DynamicQuantizeCondensedGemm(const KernelInfo& info)
    : QuantizedGemm(info, kSchema, kDynamicQuantize),
      per_row_(flag_attribute(info, "per_row")),
      isa_(select_isa()) {}

void DynamicQuantizeCondensedGemm::run(const PackedQuantizedGemm* packed, const CondensedView& view,
                                       const RunSize& size, const QuantizedRunInputs& inputs,
                                       const Activations& arrays, const Executor& executor) const {
  const size_t batch = static_cast<size_t>(size.batch);
  ScratchPlan plan;
  const size_t quantized = plan.add(batch * static_cast<size_t>(in_features_));
  const size_t scales = plan.add(batch * sizeof(float));
  const size_t zero_points = plan.add(batch * sizeof(int32_t));
  uint8_t* scratch = thread_scratch(plan.total(), ScratchUse::kActivations);
  const DynamicQuantization to{scratch + quantized, reinterpret_cast<float*>(scratch + scales),
                               reinterpret_cast<int32_t*>(scratch + zero_points)};
  dynamic_quantize(static_cast<const float*>(arrays.x), size.batch, in_features_, per_row_, to,
                   isa_, executor);

  QuantizedEpilogue epilogue = epilogue_of(inputs.get(), arrays.residual, arrays.types.y);
  epilogue.sample_multipliers = to.scales;
  QuantizedInput x{to.values, QuantizedType::kUint8};
  if (per_row_)
    x.zero_points = to.zero_points;
  else if (size.batch > 0)
    x.zero_point = to.zero_points[0];
  run_on(packed, view, x, size.batch, arrays.y, epilogue, executor);
}

}  // namespace fanin::ort
