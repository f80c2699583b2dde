#include "ort/condensed_gemm_inputs.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "ort/status.h"

namespace fanin::ort {
namespace {

[[noreturn]] void refuse(const std::string& sentence) { throw Error(kInvalidArgument, sentence); }

std::string number(float value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", static_cast<double>(value));
  return text;
}

void check_rank(Input input, const Shape& shape, size_t rank, const char* meaning) {
  if (shape.rank == rank) return;
  refuse(std::string(input_name(input)) + " has shape " + to_string(shape) + " of rank " +
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

void check_bias(const Shape& bias, const GemmAttributes& attributes) {
  if (!agree(bias[0], attributes.out_features)) {
    refuse("bias has shape " + to_string(bias) + ", out_features is " +
           std::to_string(attributes.out_features));
  }
}

void check_weight_shapes(const Shape& values, const Shape& indices, const Shape& bias,
                         const Shape& rows, const GemmAttributes& attributes) {
  check_rank(kValues, values, 2, "[active, fan_in]");
  check_rank(kIndices, indices, 2, "[active, fan_in]");
  check_rank(kBias, bias, 1, "[out_features]");
  check_rank(kRows, rows, 1, "[active]");
  check_matrix(values, indices);
  check_rows(values, rows);
  check_bias(bias, attributes);
}

// The batch sizes that fit a declared shape: symbolic dimensions are at least 1 (an empty batch
// needs no kernel).
BatchRange batches_of(const Shape& x) {
  if (x.rank == 0) return {};
  bool symbolic = false;
  int64_t known = 1;
  for (size_t axis = 0; axis + 1 < x.rank; ++axis) {
    if (x[axis] < 0) {
      symbolic = true;
    } else if (__builtin_mul_overflow(known, std::max<int64_t>(x[axis], 1), &known)) {
      return {};
    }
  }
  return symbolic ? BatchRange{known, BatchRange{}.max} : BatchRange{known, known};
}

[[noreturn]] void refuse_residual(const Shape& residual, const Shape& y) {
  refuse("residual has shape " + to_string(residual) + ", it must have the output's shape " +
         to_string(y) + ", or shape [1] holding 0 for none");
}

bool is_none_shape(const Shape& residual) { return residual.rank == 1 && agree(residual[0], 1); }

// A residual that is never going to fit is refused at creation.
void check_declared_residual(const Runtime& runtime, const KernelInfo& info, const Shape& declared,
                             const std::vector<int64_t>& y_dims, ReadScalar read) {
  const Shape y{y_dims.data(), y_dims.size()};
  if (const OrtValue* constant = info.constant(kResidual)) {
    const Tensor residual(runtime, constant);
    if (!adds_residual(residual.shape(), y)) check_none(read(residual), y);
  } else if (declared.rank > 0 && !declared.agrees(y) && !is_none_shape(declared)) {
    refuse_residual(declared, y);
  }
}

int64_t size_attribute(const KernelInfo& info, const char* name) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  const int64_t value = info.int_attribute(name);
  if (value < 1 || value > kMax) {
    refuse(std::string("attribute ") + name + " is " + std::to_string(value) +
           ", it must be 1 to " + std::to_string(kMax));
  }
  return value;
}

}  // namespace

const char* input_name(Input input) {
  static constexpr const char* kNames[] = {"X", "values", "indices", "bias", "rows", "residual"};
  return kNames[input];
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
      refuse(std::string(input_name(input)) + " is " + type_name(type) +
             ", it must be float32, float16 or bfloat16");
  }
}

GemmAttributes read_attributes(const KernelInfo& info) {
  GemmAttributes attributes;
  attributes.in_features = size_attribute(info, "in_features");
  attributes.out_features = size_attribute(info, "out_features");
  attributes.clip_min = info.float_attribute("clip_min", attributes.clip_min);
  attributes.clip_max = info.float_attribute("clip_max", attributes.clip_max);
  if (std::isnan(attributes.clip_min)) refuse("attribute clip_min is NaN");
  if (std::isnan(attributes.clip_max)) refuse("attribute clip_max is NaN");
  if (attributes.clip_min > attributes.clip_max) {
    refuse("attribute clip_min is " + number(attributes.clip_min) +
           ", more than clip_max, which is " + number(attributes.clip_max));
  }
  return attributes;
}

DeclaredInputs check_declared(const Runtime& runtime, const KernelInfo& info,
                              const GemmAttributes& attributes, ReadScalar read) {
  DeclaredInputs declared;
  std::vector<InputInfo> inputs;
  for (size_t index = 0; index < kInputCount; ++index) {
    const Input input = static_cast<Input>(index);
    inputs.push_back(info.input(index));
    if (input == kX || input == kResidual || info.constant(index) != nullptr) continue;
    if (!declared.variable_weights.empty()) declared.variable_weights += ", ";
    declared.variable_weights += input_name(input);
  }

  const ElementType index_type = inputs[kIndices].type;
  if (index_type != kUint16 && index_type != kInt32) {
    refuse(std::string("indices is ") + type_name(index_type) + ", it must be uint16 or int32");
  }

  value_type_of(inputs[kValues].type, kValues);

  // A rank of 0 may be an unknown one; creation (for constants) or the run will tell.
  const Shape x = inputs[kX].shape();
  const Shape values = inputs[kValues].shape(), indices = inputs[kIndices].shape();
  const Shape bias = inputs[kBias].shape(), rows = inputs[kRows].shape();
  if (values.rank > 0 && indices.rank > 0 && bias.rank > 0 && rows.rank > 0)
    check_weight_shapes(values, indices, bias, rows, attributes);
  if (x.rank > 0) {
    check_x(x, attributes);
    declared.batches = batches_of(x);
    check_declared_residual(runtime, info, inputs[kResidual].shape(), output_dims(x, attributes),
                            read);
  }
  return declared;
}

void check_x(const Shape& x, const GemmAttributes& attributes) {
  if (x.rank == 0) refuse("X is a scalar, it must be [..., in_features]");
  if (!agree(x.back(), attributes.in_features)) {
    refuse("X has shape " + to_string(x) + ", its last dimension must be in_features, which is " +
           std::to_string(attributes.in_features));
  }
}

int64_t batch_of(const Shape& x) {
  const int64_t* end = x.dims + x.rank - 1;
  if (std::find(x.dims, end, 0) != end) return 0;
  int64_t batch = 1;
  for (const int64_t* dim = x.dims; dim != end; ++dim) {
    if (__builtin_mul_overflow(batch, *dim, &batch))
      refuse("X has shape " + to_string(x) + ", which is too large");
  }
  return batch;
}

std::vector<int64_t> output_dims(const Shape& x, const GemmAttributes& attributes) {
  std::vector<int64_t> dims(x.dims, x.dims + x.rank);
  dims.back() = attributes.out_features;
  return dims;
}

bool adds_residual(const Shape& residual, const Shape& y) {
  if (residual.agrees(y)) return true;
  if (!is_none_shape(residual)) refuse_residual(residual, y);
  return false;
}

void check_none(float value, const Shape& y) {
  if (value == 0.0f) return;
  refuse("residual has shape [1] and holds " + number(value) +
         "; a residual of shape [1] stands for none and must hold 0 (the output's shape is " +
         to_string(y) + ")");
}

float host_scalar(const Tensor& residual) {
  return load_value(residual.data<void>(), value_type_of(residual.type(), kResidual), 0);
}

const void* residual_data(const Tensor& residual, const Shape& y) {
  if (adds_residual(residual.shape(), y)) return residual.data<void>();
  check_none(host_scalar(residual), y);
  return nullptr;
}

CondensedView WeightTensors::checked_view(const GemmAttributes& attributes) const {
  check_weight_shapes(values_.shape(), indices_.shape(), bias_.shape(), rows_.shape(), attributes);
  CondensedView view;
  view.in_features = attributes.in_features;
  view.out_features = attributes.out_features;
  view.active = values_.shape()[0];
  view.fan_in = values_.shape()[1];
  view.values = values_.data<void>();
  view.value_type = value_type_of(values_.type(), kValues);
  view.indices = indices_.data<void>();
  view.index_type = indices_.type() == kUint16 ? IndexType::kUint16 : IndexType::kInt32;
  view.rows = rows_.data<int32_t>();
  view.bias = bias_.data<float>();
  const std::string why = validate(view);
  if (!why.empty()) refuse(why);
  return view;
}

}  // namespace fanin::ort
