#include "ort/quantized_inputs.h"

#include <cmath>
#include <cstdio>
#include <string>

#include "ort/status.h"

namespace fanin::ort {
namespace {

// No product of an int32 with a smaller number overflows, nor does the sum of two of them.
constexpr float kMaxMultiplier = 0x1p96f;

std::string number(float value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", static_cast<double>(value));
  return text;
}

// "values_scale[3]", or the name alone if there is one scale only.
std::string element(const char* name, size_t count, size_t at) {
  return count == 1 ? name : std::string(name) + "[" + std::to_string(at) + "]";
}

void check_scalar_shape(const char* name, const Shape& shape) {
  if (shape.rank == 0 || (shape.rank == 1 && agree(shape[0], 1))) return;
  refuse(std::string(name) + " has shape " + to_string(shape) + ", it must be a scalar or [1]");
}

void check_values_scale_shape(const Shape& shape, const WeightSizes& sizes) {
  if (shape.rank == 1 && (agree(shape[0], 1) || agree(shape[0], sizes.out_features))) return;
  refuse("values_scale has shape " + to_string(shape) + ", it must be [" + sizes.outputs +
         "], which is [" + std::to_string(sizes.out_features) + "], or [1]");
}

void check_multiplier(const std::string& what, float value) {
  if (value < kMaxMultiplier) return;
  refuse(what + " is " + number(value) +
         ", it must be less than 2^96, so that no result overflows");
}

// A residual that is "none" is no number less than its zero point either.
void check_no_residual(int32_t zero_point) {
  if (zero_point == 0) return;
  refuse("residual has shape [1], which stands for none, and residual_zero_point is " +
         std::to_string(zero_point) + ", it must be 0 then");
}

template <typename T>
std::vector<T> copied(const Tensor& tensor, int64_t count) {
  const T* data = tensor.data<T>();
  return {data, data + count};
}

}  // namespace

NodeQuantization::NodeQuantization(const KernelInfo& info, const OpSchema& schema,
                                   const QuantizedInputs& inputs, const WeightSizes& sizes,
                                   const Clip& clip)
    : schema_(schema), inputs_(inputs), sizes_(sizes), clip_(clip) {
  InputValues values{};
  bool all_constant = true;
  for (const size_t input : positions()) {
    if (input == kNoInput) continue;
    values[input] = info.constant(input);
    all_constant &= values[input] != nullptr;
  }
  if (all_constant) {
    constant_ = read(info.runtime(), values);
    return;
  }
  for (const size_t input :
       {inputs_.x_scale, inputs_.values_scale, inputs_.y_scale, inputs_.residual_scale})
    if (input != kNoInput && values[input] != nullptr) scales(info.runtime(), values, input);
}

std::vector<float> NodeQuantization::scales(const Runtime& runtime, const InputValues& values,
                                            size_t input) const {
  const Tensor tensor(runtime, values[input]);
  const char* name = schema_.inputs[input].name;
  if (input == inputs_.values_scale)
    check_values_scale_shape(tensor.shape(), sizes_);
  else
    check_scalar_shape(name, tensor.shape());
  const int64_t count = tensor.shape().rank == 0 ? 1 : tensor.shape()[0];
  std::vector<float> scales = copied<float>(tensor, count);
  for (size_t i = 0; i < scales.size(); ++i) {
    if (std::isnormal(scales[i]) && scales[i] > 0) continue;
    refuse(element(name, scales.size(), i) + " is " + number(scales[i]) +
           ", a scale must be positive, finite and not denormal");
  }
  return scales;
}

float NodeQuantization::scale(const Runtime& runtime, const InputValues& values,
                              size_t input) const {
  return input == kNoInput ? 1.0f : scales(runtime, values, input)[0];
}

int32_t NodeQuantization::zero_point(const Runtime& runtime, const InputValues& values,
                                     size_t input) const {
  if (input == kNoInput) return 0;
  const Tensor tensor(runtime, values[input]);
  check_scalar_shape(schema_.inputs[input].name, tensor.shape());
  return tensor.type() == kInt8 ? *tensor.data<int8_t>() : *tensor.data<uint8_t>();
}

Quantization NodeQuantization::read(const Runtime& runtime, const InputValues& values) const {
  Quantization result;
  const size_t outputs = static_cast<size_t>(sizes_.out_features);
  const float x_scale = scale(runtime, values, inputs_.x_scale);
  const float y_scale = scale(runtime, values, inputs_.y_scale);
  const std::vector<float> values_scale = scales(runtime, values, inputs_.values_scale);
  const bool requantizes = inputs_.y_scale != kNoInput;
  result.multipliers.resize(outputs);
  for (size_t o = 0; o < outputs; ++o) {
    // Division by 1 is exact, as is multiplication.
    const float weight_scale = values_scale[values_scale.size() == 1 ? 0 : o];
    result.multipliers[o] = x_scale * weight_scale / y_scale;
  }
  for (size_t o = 0; o < values_scale.size(); ++o) {
    const std::string name = element("values_scale", values_scale.size(), o);
    if (requantizes)
      check_multiplier("x_scale * " + name + " / y_scale", result.multipliers[o]);
    else if (!std::isfinite(result.multipliers[o]))
      refuse("x_scale * " + name + " is " + number(result.multipliers[o]) + ", it must be finite");
  }

  const Tensor bias(runtime, values[inputs_.layer.bias]);
  if (bias.shape().rank != 1 || bias.shape()[0] != sizes_.out_features) {
    refuse("bias has shape " + to_string(bias.shape()) + ", " + sizes_.outputs + " is " +
           std::to_string(sizes_.out_features));
  }
  if (bias.type() == kInt32)
    result.bias = copied<int32_t>(bias, sizes_.out_features);
  else
    result.float_bias = copied<float>(bias, sizes_.out_features);

  result.x_zero_point = zero_point(runtime, values, inputs_.x_zero_point);
  result.y_zero_point = zero_point(runtime, values, inputs_.y_zero_point);
  result.residual_zero_point = zero_point(runtime, values, inputs_.residual_zero_point);
  result.residual_multiplier = scale(runtime, values, inputs_.residual_scale) / y_scale;
  if (requantizes) check_multiplier("residual_scale / y_scale", result.residual_multiplier);
  result.clip = {clip_.min / y_scale, clip_.max / y_scale};
  return result;
}

void NodeQuantization::check_declared(const Runtime& runtime, const KernelInfo& info,
                                      const DeclaredInputs& declared) const {
  const Shape values_scale = declared.shape(inputs_.values_scale);
  if (values_scale.rank > 0) check_values_scale_shape(values_scale, sizes_);
  for (const size_t input :
       {inputs_.x_scale, inputs_.x_zero_point, inputs_.y_scale, inputs_.y_zero_point,
        inputs_.residual_scale, inputs_.residual_zero_point})
    if (input != kNoInput) check_scalar_shape(schema_.inputs[input].name, declared.shape(input));

  if (inputs_.residual_zero_point == kNoInput || declared.y_dims.empty()) return;
  const OrtValue* residual = info.constant(inputs_.layer.residual);
  const OrtValue* zero_point = info.constant(inputs_.residual_zero_point);
  if (residual == nullptr || zero_point == nullptr) return;
  if (adds_residual(Tensor(runtime, residual).shape(), shape_of(declared.y_dims))) return;
  check_no_residual(static_cast<int32_t>(host_scalar(Tensor(runtime, zero_point))));
}

CondensedView QuantizedWeightTensors::view(const WeightSizes& sizes) const {
  const int64_t bias = sizes.out_features;
  check_weight_shapes(values_.shape(), indices_.shape(), {&bias, 1}, rows_.shape(), sizes);
  CondensedView view;
  view.in_features = sizes.in_features;
  view.out_features = sizes.out_features;
  view.active = values_.shape()[0];
  view.fan_in = values_.shape()[1];
  view.values = values_.data<void>();
  view.value_type = ValueType::kInt8;
  view.indices = indices_.data<void>();
  view.index_type = indices_.type() == kUint16 ? IndexType::kUint16 : IndexType::kInt32;
  view.rows = rows_.data<int32_t>();
  return view;
}

QuantizedType quantized_type(ElementType type) {
  if (type == kFloat) return QuantizedType::kFloat32;
  return type == kInt8 ? QuantizedType::kInt8 : QuantizedType::kUint8;
}

QuantizedEpilogue epilogue_of(const Quantization& quantization, const void* residual,
                              ElementType y_type) {
  if (residual == nullptr) check_no_residual(quantization.residual_zero_point);
  QuantizedEpilogue epilogue;
  epilogue.type = quantized_type(y_type);
  epilogue.multipliers = quantization.multipliers.data();
  if (!quantization.bias.empty()) epilogue.bias = quantization.bias.data();
  if (!quantization.float_bias.empty()) epilogue.float_bias = quantization.float_bias.data();
  epilogue.residual = residual;
  epilogue.residual_multiplier = quantization.residual_multiplier;
  epilogue.residual_zero_point = quantization.residual_zero_point;
  epilogue.clip_min = quantization.clip.min;
  epilogue.clip_max = quantization.clip.max;
  epilogue.zero_point = quantization.y_zero_point;
  return epilogue;
}

}  // namespace fanin::ort
