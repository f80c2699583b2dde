#include "ort/condensed_gemm.h"

#include <string>

namespace fanin::ort {

const OpSchema CondensedGemm::kSchema = {
    "CondensedGemm", kFloatInputs, kFloatInputCount,
    [](const ShapeInference& node) { infer_gemm_shape(node, node.x().type); }};

CondensedGemm::CondensedGemm(const KernelInfo& info)
    : GemmShape(info), compute_(ValueType::kFloat32) {
  const int64_t compute = info.int_attribute("compute", kFloat);
  if (compute == kBfloat16)
    compute_ = ValueType::kBfloat16;
  else if (compute != kFloat)
    refuse("attribute compute is " + std::to_string(compute) +
           ", it must be 1 (float32) or 16 (bfloat16)");
}

void CondensedGemm::refuse_compute_on_device(ValueType activations) const {
  if (compute_ == ValueType::kBfloat16 && activations != ValueType::kBfloat16)
    refuse(std::string("attribute compute is 16 (bfloat16) and X is ") +
           value_type_name(activations) +
           ", on CUDA X must be bfloat16 itself; export the model without compute bfloat16, or run "
           "it on the CPU provider");
}

CondensedView CondensedGemm::sound_view(const WeightTensors& weights) const {
  CondensedView view = weights.view(sizes());
  view.compute = compute_;
  refuse_unless_empty(validate(view));
  return view;
}

}  // namespace fanin::ort
