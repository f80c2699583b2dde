#include "tests/quantized_conv_check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/quantized_conv.h"
#include "core/thread_executor.h"
#include "kernels/quantized_conv_dispatch.h"
#include "tests/random_layer.h"
#include "tests/row_checks.h"

namespace fanin {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr QuantizedType kU8 = QuantizedType::kUint8, kS8 = QuantizedType::kInt8,
                        kF32 = QuantizedType::kFloat32;

struct Case {
  ConvGeometry geometry;
  ConvInput input;
  int64_t fan_in;
  QuantizedType x = kU8;
  QuantizedType y = kU8;
  bool channels_last = true;
  bool residual = false;
  float clip_min = -kInf;
  size_t threads = 1;
  Mask mask = Mask::kUniform;
};

std::string name_of(const Case& one) {
  const ConvGeometry& g = one.geometry;
  std::string name = one.channels_last ? "NHWC " : "NCHW ";
  const auto add = [&name](const char* what, std::initializer_list<int64_t> numbers) {
    name += what;
    for (const int64_t number : numbers) name += " " + std::to_string(number);
    name += ", ";
  };
  add("input", {one.input.batch, g.in_channels, one.input.height, one.input.width});
  add("outputs", {g.out_channels});
  add("group", {g.group});
  add("kernel", {g.kernel[0], g.kernel[1]});
  add("strides", {g.strides[0], g.strides[1]});
  add("dilations", {g.dilations[0], g.dilations[1]});
  add("pads", {g.pads[0], g.pads[1], g.pads[2], g.pads[3]});
  add("fan-in", {one.fan_in});
  add("types", {static_cast<int64_t>(one.x), static_cast<int64_t>(one.y)});
  add("threads", {static_cast<int64_t>(one.threads)});
  return name;
}

// Blocks of exactly the size that a run may read or write, for AddressSanitizer.
struct Block {
  explicit Block(size_t count) : bytes(new uint8_t[count]), size(count) {}
  Block(size_t count, std::mt19937& random) : Block(count) {
    for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>(random());
  }
  bool operator==(const Block& other) const {
    return size == other.size && std::equal(bytes.get(), bytes.get() + size, other.bytes.get());
  }

  std::unique_ptr<uint8_t[]> bytes;
  size_t size;
};

void check_case(const QuantizedConvKernelRow& row, const Case& one, std::mt19937& random) {
  const ConvGeometry& g = one.geometry;
  const std::string where = row.name + ", " + name_of(one);
  LayerSpec spec{g.group_inputs() * g.taps(), g.out_channels, one.fan_in,
                 std::max<int64_t>(1, g.out_channels - g.out_channels / 5)};
  spec.padded = one.fan_in % 3 == 0;
  spec.values = ValueType::kInt8;
  spec.mask = one.mask;
  const Layer layer = make_layer(spec, random);
  const CondensedView view = layer.view();
  std::string wrong = validate_quantized(view, g);
  if (wrong.empty()) wrong = validate(g, one.input);
  expect_that(wrong.empty(), where + wrong);
  if (!wrong.empty()) return;

  const auto point = [&random](QuantizedType type) {
    const auto byte = static_cast<int32_t>(random() % 256);
    return type == kF32 ? 0 : type == kS8 ? byte - 128 : byte;
  };
  const int64_t pixels =
      one.input.batch * g.output_size(0, one.input.height) * g.output_size(1, one.input.width);
  const auto outputs = static_cast<size_t>(pixels * g.out_channels);
  const Block x(
      static_cast<size_t>(one.input.batch * g.in_channels * one.input.height * one.input.width),
      random);
  QuantizedImages images;
  images.data = x.bytes.get();
  images.type = one.x;
  images.zero_point = point(one.x);
  images.size = one.input;
  images.channels_last = one.channels_last;

  std::vector<float> multipliers = random_floats(static_cast<size_t>(g.out_channels), random);
  for (float& multiplier : multipliers)
    multiplier = (std::abs(multiplier) + 0.1f) * 0.02f / static_cast<float>(one.fan_in + 1);
  std::vector<int32_t> bias;
  for (int64_t o = 0; o < g.out_channels; ++o)
    bias.push_back(static_cast<int32_t>(random() % 20001) - 10000);
  QuantizedEpilogue epilogue;
  epilogue.type = one.y;
  epilogue.multipliers = multipliers.data();
  epilogue.bias = bias.data();
  epilogue.zero_point = point(one.y);
  epilogue.clip_min = one.clip_min;
  epilogue.clip_max = 90.0f;
  epilogue.residual_multiplier = 0.7f;
  epilogue.residual_zero_point = point(one.y);
  const Block residual8(outputs, random);
  const std::vector<float> residual32 = random_floats(outputs, random);
  if (one.residual)
    epilogue.residual = one.y == kF32 ? static_cast<const void*>(residual32.data())
                                      : static_cast<const void*>(residual8.bytes.get());

  const size_t bytes = outputs * (one.y == kF32 ? sizeof(float) : 1);
  Block want(bytes), y(bytes);
  run_plain_quantized_conv(view, g, images, want.bytes.get(), epilogue);
  const InlineExecutor alone;
  const auto conv = PackedQuantizedConv::pack_kernel(view, g, row.name, alone);
  expect_that(conv->holds(view, g), where + "does not hold what was packed");
  conv->run(images, y.bytes.get(), epilogue, alone);
  expect_that(y == want, where);
  if (one.threads == 1) return;
  Block split(bytes);
  conv->run(images, split.bytes.get(), epilogue, ThreadExecutor(one.threads));
  expect_that(split == want, where + "differs with threads");
}

int64_t between(int64_t low, int64_t high, std::mt19937& random) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

ConvGeometry random_geometry(std::mt19937& random) {
  ConvGeometry g;
  g.group = random() % 4 == 0 ? between(2, 5, random) : 1;
  g.in_channels = g.group * between(1, random() % 3 == 0 ? 70 : 12, random);
  g.out_channels = g.group * between(1, 40 / g.group, random);
  for (int axis = 0; axis < 2; ++axis) {
    g.kernel[axis] = between(1, 4, random);
    g.strides[axis] = between(1, 3, random);
    g.dilations[axis] = between(1, 2, random);
  }
  for (int64_t& pad : g.pads) pad = random() % 2 == 0 ? 0 : between(0, 3, random);
  return g;
}

void check_row(const QuantizedConvKernelRow& row) {
  std::mt19937 random(5);
  const auto types = [&random](Case& one) {
    one.x = random() % 2 == 0 ? kU8 : kS8;
    one.y = random() % 5 == 0 ? kF32 : random() % 2 == 0 ? kU8 : kS8;
    one.channels_last = random() % 3 != 0;
    one.residual = random() % 3 == 0;
    one.clip_min = random() % 3 == 0 ? 0.0f : -kInf;
    one.threads = random() % 8 == 0 ? 3 : 1;
  };
  for (int i = 0; i < 200; ++i) {
    Case one{random_geometry(random), {}, 1};
    one.input = {between(1, 3, random), between(10, 17, random), between(10, 40, random)};
    one.fan_in = between(1, one.geometry.group_inputs() * one.geometry.taps(), random);
    types(one);
    check_case(row, one, random);
  }
  // 1 x 1: all tails of tiles, and channels around the width of a window.
  for (int64_t pixels = 1; pixels <= 70; ++pixels)
    for (const int64_t stride : {1, 2}) {
      ConvGeometry g;
      g.in_channels = pixels % 4 == 0 ? 64 : 1 + pixels * 2;
      g.out_channels = 13 + pixels % 30;
      g.strides[1] = stride;
      Case one{g, {1 + pixels % 2, 1, pixels}, 1 + g.in_channels / 7};
      types(one);
      check_case(row, one, random);
    }
  // Depthwise.
  ConvGeometry g;
  g.in_channels = g.out_channels = g.group = 70;
  g.kernel[0] = g.kernel[1] = 3;
  for (int64_t& pad : g.pads) pad = 1;
  for (const bool last : {true, false}) {
    Case one{g, {2, 9, 9}, 9};
    one.channels_last = last;
    check_case(row, one, random);
  }
  // Several strips of an image, in rows and in columns, and several blocks of weights.
  g.group = 1;
  g.in_channels = 256;
  g.out_channels = 70;
  for (const ConvInput input : {ConvInput{1, 20, 60}, ConvInput{2, 4, 400}, ConvInput{1, 1, 2000}})
    for (const bool last : {true, false}) {
      Case one{g, input, 40};
      one.channels_last = last;
      one.threads = 5;
      check_case(row, one, random);
    }
  // Rows in another order than the outputs.
  g.kernel[0] = g.kernel[1] = 1;
  for (int64_t& pad : g.pads) pad = 0;
  g.in_channels = 3000;
  g.out_channels = 400;
  for (const bool last : {true, false})
    for (const QuantizedType type : {kU8, kF32}) {
      Case one{g, {1, 3, 5}, 100};
      one.mask = Mask::kClustered;
      one.channels_last = last;
      one.y = type;
      one.residual = true;
      one.threads = 2;
      check_case(row, one, random);
    }
}

}  // namespace

void check_quantized_convolutions() { check_each_kernel(quantized_conv_kernel_table(), check_row); }

}  // namespace fanin
