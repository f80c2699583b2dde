// What CondensedGemm asks of its attributes and inputs, at creation and at every run.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "core/condensed.h"
#include "core/gemm.h"
#include "ort/kernel_info.h"
#include "ort/tensor.h"

namespace fanin::ort {

enum Input : size_t { kX, kValues, kIndices, kBias, kRows, kResidual, kInputCount };

const char* input_name(Input input);

struct GemmAttributes {
  int64_t in_features = 0;
  int64_t out_features = 0;
  float clip_min = -std::numeric_limits<float>::infinity();
  float clip_max = std::numeric_limits<float>::infinity();
};

// Throws Error for an attribute that is missing, of another type or out of range.
GemmAttributes read_attributes(const KernelInfo& info);

struct DeclaredInputs {
  BatchRange batches;            // of X
  std::string variable_weights;  // "values, bias"; empty if all weights are constant
};

// How to read the first element of a constant tensor of float32, float16 or bfloat16.
using ReadScalar = float (*)(const Tensor&);

// From memory of the host.
float host_scalar(const Tensor& residual);

// Checks the types and shapes that the graph declares, as far as they are known, and a constant
// residual. Throws Error.
DeclaredInputs check_declared(const Runtime& runtime, const KernelInfo& info,
                              const GemmAttributes& attributes, ReadScalar read = host_scalar);

// Throws Error for a type that is neither float32, float16 nor bfloat16.
ValueType value_type_of(ElementType type, Input input);

// Throws Error unless X is [..., in_features] with at least one dimension.
void check_x(const Shape& x, const GemmAttributes& attributes);

// The product of all dimensions of X but the last. Throws Error if it overflows.
int64_t batch_of(const Shape& x);

// The shape of Y: [..., out_features].
std::vector<int64_t> output_dims(const Shape& x, const GemmAttributes& attributes);

// Whether a residual of this shape is added. One of Y's shape is, also where that shape is [1];
// else shape [1] stands for none. Throws Error for any other shape.
bool adds_residual(const Shape& residual, const Shape& y);

// Throws Error unless the residual that stands for none holds 0.
void check_none(float value, const Shape& y);

// What to add to Y, of the type of X, from host memory; null for none. Throws Error for a residual
// that is neither.
const void* residual_data(const Tensor& residual, const Shape& y);

// The four weight tensors of a node.
class WeightTensors {
 public:
  // `value_of(Input)` gives an OrtValue.
  template <typename ValueOf>
  WeightTensors(const Runtime& runtime, ValueOf&& value_of)
      : values_(runtime, value_of(kValues)),
        indices_(runtime, value_of(kIndices)),
        bias_(runtime, value_of(kBias)),
        rows_(runtime, value_of(kRows)) {}

  // A view of them that is sound (see validate). Throws Error that says what is not.
  CondensedView checked_view(const GemmAttributes& attributes) const;

 private:
  Tensor values_, indices_, bias_, rows_;
};

}  // namespace fanin::ort
