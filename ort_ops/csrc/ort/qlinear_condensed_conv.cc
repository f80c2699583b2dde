#include "ort/qlinear_condensed_conv.h"

namespace fanin::ort {

const OpSchema QLinearCondensedConv::kSchema = {
    "QLinearCondensedConv", kQLinearInputs, kQLinearInputCount, [](const ShapeInference& node) {
      infer_conv_shape(node, node.input(kQLinear.y_zero_point).type,
                       node.int_attribute("channels_last").value_or(0) != 0);
    }};

QLinearCondensedConv::QLinearCondensedConv(const KernelInfo& info)
    : ConvShape(info, flag_attribute(info, "channels_last")),
      quantization_(info, kSchema, kQLinear, sizes(), clip_) {}

DeclaredInputs QLinearCondensedConv::check_declared(const Runtime& runtime, const KernelInfo& info,
                                                    ReadScalar read) const {
  DeclaredInputs declared = check_declared_inputs(runtime, info, *this, read);
  quantization_.check_declared(runtime, info, declared);
  return declared;
}

CondensedView QLinearCondensedConv::sound_view(const QuantizedWeightTensors& weights) const {
  const CondensedView view = weights.view(sizes());
  refuse_unless_empty(validate_quantized(view, geometry_));
  return view;
}

void QLinearCondensedConv::run(const PackedQuantizedConv* packed, const CondensedView& view,
                               const RunSize& size, const QuantizedRunInputs& inputs,
                               const Activations& arrays, const Executor& executor) const {
  const Quantization& numbers = inputs.get();
  const QuantizedImages x{arrays.x, quantized_type(arrays.types.x), numbers.x_zero_point, size,
                          channels_last_};
  const QuantizedEpilogue epilogue = epilogue_of(numbers, arrays.residual, arrays.types.y);
  if (packed)
    packed->run(x, arrays.y, epilogue, executor);
  else
    run_plain_quantized_conv(view, geometry_, x, arrays.y, epilogue);
}

}  // namespace fanin::ort
