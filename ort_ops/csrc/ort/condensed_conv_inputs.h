// What CondensedConv asks of its attributes and of X, beside what node_inputs.h asks for every op.
#pragma once

#include <string>
#include <vector>

#include "core/condensed.h"
#include "core/conv_geometry.h"
#include "core/gate.h"
#include "ort/node_inputs.h"

namespace fanin::ort {

struct ConvAttributes {
  ConvGeometry geometry;
  size_t axes = 2;  // spatial ones: 1 or 2; with one, the geometry's height is 1
  int64_t window = 1;
  Clip clip;
  Gate gate;

  WeightSizes sizes() const { return {window, geometry.out_channels, "out_channels"}; }
};

// Throws Error for an attribute that is missing, of another type or length, out of range, or that
// contradicts another.
ConvAttributes read_conv_attributes(const KernelInfo& info);

struct DeclaredConv {
  ConvInput input{-1, -1, -1};   // -1 where symbolic
  std::string variable_weights;  // "values, bias"; empty if all weights are constant
};

// Checks the types and shapes that the graph declares, as far as they are known, and a constant
// residual. Throws Error.
DeclaredConv check_declared(const Runtime& runtime, const KernelInfo& info,
                            const ConvAttributes& attributes, ReadScalar read = host_scalar);

// The size of X, -1 where unknown. Throws Error unless X is [N, in_channels, H, W], or
// [N, in_channels, L] with one axis, and the kernel fits into it.
ConvInput input_of(const Shape& x, const ConvAttributes& attributes);

// The shape of Y: [N, out_channels, ...], -1 where unknown.
std::vector<int64_t> output_dims(const ConvInput& input, const ConvAttributes& attributes);

// A view of the weights that is sound together with the geometry (see validate). Throws Error that
// says what is not.
CondensedView sound_view(const WeightTensors& weights, const ConvAttributes& attributes);

}  // namespace fanin::ort
