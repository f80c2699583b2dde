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

void check_rank(const char* input, const Shape& shape, size_t rank, const std::string& meaning) {
  if (shape.rank == rank) return;
  refuse(std::string(input) + " has shape " + to_string(shape) + " of rank " +
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

bool flag_attribute(const KernelInfo& info, const char* name) {
  const int64_t value = info.int_attribute(name, 0);
  if (value != 0 && value != 1) {
    refuse(std::string("attribute ") + name + " is " + std::to_string(value) +
           ", it must be 0 or 1");
  }
  return value == 1;
}

void check_size(const std::string& name, int64_t value, int64_t least) {
  if (value >= least && value <= kMaxSize) return;
  refuse("attribute " + name + " is " + std::to_string(value) + ", it must be " +
         std::to_string(least) + " to " + std::to_string(kMaxSize));
}

DeclaredInputs check_declared_weights(const KernelInfo& info, const OpSchema& schema,
                                      const LayerInputs& layer, const WeightSizes& sizes) {
  DeclaredInputs declared;
  for (size_t index = 0; index < schema.input_count; ++index) {
    declared.inputs.push_back(info.input(index));
    const bool is_packed = index == layer.values || index == layer.indices || index == layer.rows ||
                           (index == layer.bias && layer.packs_bias);
    if (!is_packed || info.constant(index) != nullptr) continue;
    if (!declared.variable_weights.empty()) declared.variable_weights += ", ";
    declared.variable_weights += schema.inputs[index].name;
  }

  const ElementType index_type = declared.inputs[layer.indices].type;
  if (index_type != kUint16 && index_type != kInt32) {
    refuse(std::string("indices is ") + type_name(index_type) + ", it must be uint16 or int32");
  }
  if (schema.inputs[layer.values].type == kUndefined)
    value_type_of(declared.inputs[layer.values].type, "values");

  const Shape values = declared.shape(layer.values), indices = declared.shape(layer.indices);
  const Shape bias = declared.shape(layer.bias), rows = declared.shape(layer.rows);
  if (values.rank > 0 && indices.rank > 0 && bias.rank > 0 && rows.rank > 0)
    check_weight_shapes(values, indices, bias, rows, sizes);
  return declared;
}

void check_declared_residual(const Runtime& runtime, const KernelInfo& info, size_t input,
                             const Shape& declared, const Shape& y, ReadScalar read) {
  if (const OrtValue* constant = info.constant(input)) {
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

void check_weight_shapes(const Shape& values, const Shape& indices, const Shape& bias,
                         const Shape& rows, const WeightSizes& sizes) {
  check_rank("values", values, 2, "[active, fan_in]");
  check_rank("indices", indices, 2, "[active, fan_in]");
  check_rank("bias", bias, 1, std::string("[") + sizes.outputs + "]");
  check_rank("rows", rows, 1, "[active]");
  check_matrix(values, indices);
  check_rows(values, rows);
  check_bias(bias, sizes);
}

ValueType value_type_of(ElementType type, const char* input) {
  switch (type) {
    case kFloat:
      return ValueType::kFloat32;
    case kFloat16:
      return ValueType::kFloat16;
    case kBfloat16:
      return ValueType::kBfloat16;
    default:
      refuse(std::string(input) + " is " + type_name(type) +
             ", it must be float32, float16 or bfloat16");
  }
}

bool adds_residual(const Shape& residual, const Shape& y) {
  if (residual.agrees(y)) return true;
  if (!is_none_shape(residual)) refuse_residual(residual, y);
  return false;
}

float host_scalar(const Tensor& residual) {
  if (residual.type() == kUint8) return *residual.data<uint8_t>();
  if (residual.type() == kInt8) return *residual.data<int8_t>();
  return load_value(residual.data<void>(), value_type_of(residual.type(), "residual"), 0);
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
  view.value_type = value_type_of(values_.type(), "values");
  view.indices = indices_.data<void>();
  view.index_type = indices_.type() == kUint16 ? IndexType::kUint16 : IndexType::kInt32;
  view.rows = rows_.data<int32_t>();
  view.bias = bias_.data<float>();
  return view;
}

}  // namespace fanin::ort
