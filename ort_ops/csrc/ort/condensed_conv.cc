#include "ort/condensed_conv.h"

#include <cmath>
#include <string>
#include <utility>

namespace fanin::ort {
namespace {

// The attributes gate_scale and gate_shift.
Gate read_gate(const KernelInfo& info) {
  Gate gate;
  gate.scale = info.float_attribute("gate_scale", gate.scale);
  gate.shift = info.float_attribute("gate_shift", gate.shift);
  for (const auto& [name, value] :
       {std::pair{"gate_scale", gate.scale}, {"gate_shift", gate.shift}})
    if (!std::isfinite(value)) refuse(std::string("attribute ") + name + " is not finite");
  return gate;
}

}  // namespace

const OpSchema CondensedConv::kSchema = {
    "CondensedConv", kFloatInputs, kFloatInputCount,
    [](const ShapeInference& node) { infer_conv_shape(node, node.x().type, false); }};

CondensedConv::CondensedConv(const KernelInfo& info)
    : ConvShape(info, false), gate_(read_gate(info)) {}

CondensedView CondensedConv::sound_view(const WeightTensors& weights) const {
  const CondensedView view = weights.view(sizes());
  refuse_unless_empty(validate(view, geometry_));
  return view;
}

}  // namespace fanin::ort
