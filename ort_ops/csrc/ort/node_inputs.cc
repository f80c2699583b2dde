#include "ort/node_inputs.h"

#include <cmath>
#include <cstdio>

#include "ort/status.h"

namespace fanin::ort {
namespace {

std::string number(float value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", static_cast<double>(value));
  return text;
}

void check_rank(Input input, const Shape& shape, size_t rank, const std::string& meaning) {
  if (shape.rank == rank) return;
  refuse(std::string(kInputs[input].name) + " has shape " + to_string(shape) + " of rank " +
         std::to_string(shape.rank) + ", it must be " + meaning);
}

void check_matrix(const Shape& values, const Shape& indices) {
  if (!values.agrees(indices)) {
    refuse("values has shape " + to_string(values) + " and indices has shape " +
           to_string(indices) + ", they must be equal");
  }
}

void check_rows(const Shape& values, const Shape& rows) {
  if (!agree(values[0], rows[0])) {
    refuse("rows has shape " + to_string(rows) + ", it must have one entry for each of the " +
           std::to_string(values[0]) + " rows of values");
  }
}

void check_bias(const Shape& bias, const WeightSizes& sizes) {
  if (!agree(bias[0], sizes.out_features)) {
    refuse("bias has shape " + to_string(bias) + ", " + sizes.outputs + " is " +
           std::to_string(sizes.out_features));
  }
}

void check_weight_shapes(const Shape& values, const Shape& indices, const Shape& bias,
                         const Shape& rows, const WeightSizes& sizes) {
  check_rank(kValues, values, 2, "[active, fan_in]");
  check_rank(kIndices, indices, 2, "[active, fan_in]");
  check_rank(kBias, bias, 1, std::string("[") + sizes.outputs + "]");
  check_rank(kRows, rows, 1, "[active]");
  check_matrix(values, indices);
  check_rows(values, rows);
  check_bias(bias, sizes);
}

[[noreturn]] void refuse_residual(const Shape& residual, const Shape& y) {
  refuse("residual has shape " + to_string(residual) + ", it must have the output's shape " +
         to_string(y) + ", or shape [1] holding 0 for none");
}

bool is_none_shape(const Shape& residual) { return residual.rank == 1 && agree(residual[0], 1); }

// The residual that stands for none must hold 0.
void check_none(float value, const Shape& y) {
  if (value == 0.0f) return;
  refuse("residual has shape [1] and holds " + number(value) +
         "; a residual of shape [1] stands for none and must hold 0 (the output's shape is " +
         to_string(y) + ")");
}

}  // namespace

void refuse(const std::string& sentence) { throw Error(kInvalidArgument, sentence); }

void refuse_unless_empty(const std::string& why) {
  if (!why.empty()) refuse(why);
}

Clip read_clip(const KernelInfo& info) {
  Clip clip;
  clip.min = info.float_attribute("clip_min", clip.min);
  clip.max = info.float_attribute("clip_max", clip.max);
  if (std::isnan(clip.min)) refuse("attribute clip_min is NaN");
  if (std::isnan(clip.max)) refuse("attribute clip_max is NaN");
  if (clip.min > clip.max) {
    refuse("attribute clip_min is " + number(clip.min) + ", more than clip_max, which is " +
           number(clip.max));
  }
  return clip;
}

int64_t size_attribute(const KernelInfo& info, const char* name) {
  const int64_t value = info.int_attribute(name);
  check_size(name, value, 1);
  return value;
}

void check_size(const std::string& name, int64_t value, int64_t least) {
  if (value >= least && value <= kMaxSize) return;
  refuse("attribute " + name + " is " + std::to_string(value) + ", it must be " +
         std::to_string(least) + " to " + std::to_string(kMaxSize));
}

DeclaredInputs check_declared_weights(const KernelInfo& info, const WeightSizes& sizes) {
  DeclaredInputs declared;
  for (size_t index = 0; index < kInputCount; ++index) {
    const Input input = static_cast<Input>(index);
    declared.inputs.push_back(info.input(index));
    if (input == kX || input == kResidual || info.constant(index) != nullptr) continue;
    if (!declared.variable_weights.empty()) declared.variable_weights += ", ";
    declared.variable_weights += kInputs[input].name;
  }

  const ElementType index_type = declared.inputs[kIndices].type;
  if (index_type != kUint16 && index_type != kInt32) {
    refuse(std::string("indices is ") + type_name(index_type) + ", it must be uint16 or int32");
  }
  value_type_of(declared.inputs[kValues].type, kValues);

  const Shape values = declared.shape(kValues), indices = declared.shape(kIndices);
  const Shape bias = declared.shape(kBias), rows = declared.shape(kRows);
  if (values.rank > 0 && indices.rank > 0 && bias.rank > 0 && rows.rank > 0)
    check_weight_shapes(values, indices, bias, rows, sizes);
  return declared;
}

void check_declared_residual(const Runtime& runtime, const KernelInfo& info, const Shape& declared,
                             const Shape& y, ReadScalar read) {
  if (const OrtValue* constant = info.constant(kResidual)) {
    const Tensor residual(runtime, constant);
    if (!adds_residual(residual.shape(), y)) check_none(read(residual), y);
  } else if (declared.rank > 0 && !declared.agrees(y) && !is_none_shape(declared)) {
    refuse_residual(declared, y);
  }
}

void check_batch(int64_t batch, const BatchRange& packed, const Shape& x) {
  if (batch >= packed.min && batch <= packed.max) return;
  refuse("X has shape " + to_string(x) +
         ", which contradicts the shape that the model declares for it; correct the model's "
         "shapes, or make the dimension symbolic");
}

ValueType value_type_of(ElementType type, Input input) {
  switch (type) {
    case kFloat:
      return ValueType::kFloat32;
    case kFloat16:
      return ValueType::kFloat16;
    case kBfloat16:
      return ValueType::kBfloat16;
    default:
      refuse(std::string(kInputs[input].name) + " is " + type_name(type) +
             ", it must be float32, float16 or bfloat16");
  }
}

bool adds_residual(const Shape& residual, const Shape& y) {
  if (residual.agrees(y)) return true;
  if (!is_none_shape(residual)) refuse_residual(residual, y);
  return false;
}

float host_scalar(const Tensor& residual) {
  return load_value(residual.data<void>(), value_type_of(residual.type(), kResidual), 0);
}

const void* residual_data(const Tensor& residual, const Shape& y) {
  if (adds_residual(residual.shape(), y)) return residual.data<void>();
  check_none(host_scalar(residual), y);
  return nullptr;
}

CondensedView WeightTensors::view(const WeightSizes& sizes) const {
  check_weight_shapes(values_.shape(), indices_.shape(), bias_.shape(), rows_.shape(), sizes);
  CondensedView view;
  view.in_features = sizes.in_features;
  view.out_features = sizes.out_features;
  view.active = values_.shape()[0];
  view.fan_in = values_.shape()[1];
  view.values = values_.data<void>();
  view.value_type = value_type_of(values_.type(), kValues);
  view.indices = indices_.data<void>();
  view.index_type = indices_.type() == kUint16 ? IndexType::kUint16 : IndexType::kInt32;
  view.rows = rows_.data<int32_t>();
  view.bias = bias_.data<float>();
  return view;
}

}  // namespace fanin::ort
