#include "ort/condensed_gemm.h"

namespace fanin::ort {

const OpSchema CondensedGemm::kSchema = {
    "CondensedGemm", kFloatInputs, kFloatInputCount,
    [](const ShapeInference& node) { infer_gemm_shape(node, node.x().type); }};

CondensedView CondensedGemm::sound_view(const WeightTensors& weights) const {
  const CondensedView view = weights.view(sizes());
  refuse_unless_empty(validate(view));
  return view;
}

}  // namespace fanin::ort
