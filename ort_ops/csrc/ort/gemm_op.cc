#include "ort/gemm_op.h"

#include <utility>

namespace fanin::ort {
namespace {

// Y has the shape of X with out_features last; symbolic dimensions keep their names.
OrtStatus* infer_shape(const OrtCustomOp* op, OrtShapeInferContext* context) noexcept {
  const auto& self = *static_cast<const GemmOp*>(op);
  return guarded(self.runtime.api, self.name, [&] {
    const ShapeInference node(self.runtime.api, context);
    const std::optional<int64_t> out_features = node.int_attribute("out_features");
    InferredShape shape = node.x();
    if (!out_features || *out_features < 1 || shape.dims.empty()) return;
    shape.dims.back() = *out_features;
    shape.names.back().clear();
    node.set_y(std::move(shape));
  });
}

}  // namespace

GemmOp::GemmOp(const Runtime& owner, ElementType activations)
    : CondensedOp(owner, activations, "CondensedGemm") {
  InferOutputShapeFn = infer_shape;
}

}  // namespace fanin::ort
