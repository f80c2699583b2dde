// Shared by the ops: the inputs of a layer and the clip, with their checks at creation and at every
// run. All functions throw Error with a message for the user.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "core/condensed.h"
#include "core/gemm.h"
#include "ort/condensed_op.h"
#include "ort/kernel_info.h"
#include "ort/tensor.h"

namespace fanin::ort {

inline constexpr size_t kX = 0;

// Where an op has the inputs of a layer.
struct LayerInputs {
  size_t values, indices, bias, rows, residual;
  bool packs_bias;  // the packed layer contains it
};

// The inputs of CondensedGemm and CondensedConv.
inline constexpr InputSpec kFloatInputs[] = {
    {"X", TypedAs::kX, kUndefined},
    {"values", TypedAs::kItself, kUndefined},
    {"indices", TypedAs::kItself, kUndefined},
    {"bias", TypedAs::kItself, kFloat},
    {"rows", TypedAs::kItself, kInt32},
    {"residual", TypedAs::kY, kUndefined},
};
inline constexpr size_t kFloatInputCount = sizeof kFloatInputs / sizeof kFloatInputs[0];
inline constexpr LayerInputs kFloatLayer{1, 2, 3, 4, 5, true};

// Of a run that reads nothing but X, the residual and the weights.
struct NoRunInputs {};

[[noreturn]] void refuse(const std::string& sentence);

// Throws the error that a validate() returned; does nothing if it is empty.
void refuse_unless_empty(const std::string& why);

struct Clip {
  float min = -std::numeric_limits<float>::infinity();
  float max = std::numeric_limits<float>::infinity();
};

// The attributes clip_min and clip_max.
Clip read_clip(const KernelInfo& info);

// A required INT from 1 to kMaxSize.
int64_t size_attribute(const KernelInfo& info, const char* name);

// An optional INT that is 0 or 1, 0 if absent.
bool flag_attribute(const KernelInfo& info, const char* name);

// Refuses a number outside of `least` to kMaxSize; `name` is the attribute's, or "pads[3]".
void check_size(const std::string& name, int64_t value, int64_t least);

// The dense weight that the condensed one represents.
struct WeightSizes {
  int64_t in_features;
  int64_t out_features;
  const char* outputs;  // the attribute's name: "out_features"
};

struct DeclaredInputs {
  std::vector<InputInfo> inputs;
  std::string variable_weights;  // "values, bias"; empty if all weights are constant
  std::vector<int64_t> y_dims;   // -1 where unknown; empty for an unknown rank

  // A rank of 0 may be an unknown one.
  Shape shape(size_t input) const { return inputs[input].shape(); }
};

// Checks the declared types and the shapes of the weights, as far as they are known; creation (for
// constants) or the run checks the rest.
DeclaredInputs check_declared_weights(const KernelInfo& info, const OpSchema& schema,
                                      const LayerInputs& layer, const WeightSizes& sizes);

// Reads the first element of a constant tensor of a float type, uint8 or int8.
using ReadScalar = float (*)(const Tensor&);

// Reads from host memory.
float host_scalar(const Tensor& residual);

// Refuses a constant or declared residual that cannot fit an output of these dimensions (-1:
// unknown).
void check_declared_residual(const Runtime& runtime, const KernelInfo& info, size_t input,
                             const Shape& declared, const Shape& y, ReadScalar read);

// Checks the types and shapes that the graph declares, as far as they are known, and a constant
// residual.
template <typename Op>
DeclaredInputs check_declared_inputs(const Runtime& runtime, const KernelInfo& info, const Op& op,
                                     ReadScalar read) {
  DeclaredInputs declared = check_declared_weights(info, Op::kSchema, Op::kLayer, op.sizes());
  const Shape x = declared.shape(kX);
  if (x.rank > 0) op.check_x(x);
  declared.y_dims = op.output_dims(x);
  if (!declared.y_dims.empty()) {
    check_declared_residual(runtime, info, Op::kLayer.residual, declared.shape(Op::kLayer.residual),
                            shape_of(declared.y_dims), read);
  }
  return declared;
}

// Refuses a batch for which nothing was packed, because the model declares another one.
void check_batch(int64_t batch, const BatchRange& packed, const Shape& x);

// The float type of that input.
ValueType value_type_of(ElementType type, const char* input);

// Refuses shapes of a layer's inputs that contradict each other or the sizes.
void check_weight_shapes(const Shape& values, const Shape& indices, const Shape& bias,
                         const Shape& rows, const WeightSizes& sizes);

// Whether a residual of this shape is added. One of Y's shape is, even if that shape is [1];
// otherwise shape [1] stands for none. Refuses any other shape.
bool adds_residual(const Shape& residual, const Shape& y);

// The residual, of Y's type and in host memory; null for none. Refuses any other residual.
const void* residual_data(const Tensor& residual, const Shape& y);

// The four weight tensors of a node on floats.
class WeightTensors {
 public:
  // `value_of(input)` gives an OrtValue.
  template <typename ValueOf>
  WeightTensors(const Runtime& runtime, ValueOf&& value_of)
      : values_(runtime, value_of(kFloatLayer.values)),
        indices_(runtime, value_of(kFloatLayer.indices)),
        bias_(runtime, value_of(kFloatLayer.bias)),
        rows_(runtime, value_of(kFloatLayer.rows)) {}

  // A view of them, whose shapes are checked and whose contents are not (see validate).
  CondensedView view(const WeightSizes& sizes) const;

 private:
  Tensor values_, indices_, bias_, rows_;
};

}  // namespace fanin::ort
