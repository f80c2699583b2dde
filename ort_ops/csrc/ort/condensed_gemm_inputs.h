// What CondensedGemm asks of its attributes and of X, beside what node_inputs.h asks for every op.
#pragma once

#include <string>
#include <vector>

#include "core/condensed.h"
#include "core/gemm.h"
#include "ort/node_inputs.h"

namespace fanin::ort {

struct GemmAttributes {
  int64_t in_features = 0;
  int64_t out_features = 0;
  Clip clip;

  WeightSizes sizes() const { return {in_features, out_features, "out_features"}; }
};

// Throws Error for an attribute that is missing, of another type or out of range.
GemmAttributes read_gemm_attributes(const KernelInfo& info);

struct DeclaredGemm {
  BatchRange batches;            // of X
  std::string variable_weights;  // "values, bias"; empty if all weights are constant
};

// Checks the types and shapes that the graph declares, as far as they are known, and a constant
// residual. Throws Error.
DeclaredGemm check_declared(const Runtime& runtime, const KernelInfo& info,
                            const GemmAttributes& attributes, ReadScalar read = host_scalar);

// Throws Error unless X is [..., in_features] with at least one dimension.
void check_x(const Shape& x, const GemmAttributes& attributes);

// The product of all dimensions of X but the last. Throws Error if it overflows.
int64_t batch_of(const Shape& x);

// The shape of Y: [..., out_features].
std::vector<int64_t> output_dims(const Shape& x, const GemmAttributes& attributes);

// Throws Error for a batch that nothing was packed for: the model declares another one.
void check_batch(int64_t batch, const BatchRange& packed, const Shape& x);

// A view of the weights that is sound (see validate). Throws Error that says what is not.
CondensedView sound_view(const WeightTensors& weights, const GemmAttributes& attributes);

}  // namespace fanin::ort
