#include "tests/conv_check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/conv.h"
#include "core/thread_executor.h"
#include "kernels/conv_dispatch.h"
#include "kernels/depthwise_conv.h"
#include "tests/oracle.h"
#include "tests/random_layer.h"
#include "tests/row_checks.h"

namespace fanin {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Case {
  ConvGeometry geometry;
  ConvInput input;
  int64_t fan_in;
  bool padded = false;  // of the format
  ValueType values = ValueType::kFloat32;
  float special = 0.0f;  // in place of some x
  size_t threads = 1;
  bool gated = false;
};

std::string name_of(const Case& one) {
  const ConvGeometry& g = one.geometry;
  const auto text = [](int64_t number) { return std::to_string(number); };
  return text(g.in_channels) + " -> " + text(g.out_channels) + ", group " + text(g.group) + ", " +
         text(g.kernel[0]) + " x " + text(g.kernel[1]) + ", strides " + text(g.strides[0]) + " " +
         text(g.strides[1]) + ", dilations " + text(g.dilations[0]) + " " + text(g.dilations[1]) +
         ", pads " + text(g.pads[0]) + " " + text(g.pads[1]) + " " + text(g.pads[2]) + " " +
         text(g.pads[3]) + ", input " + text(one.input.batch) + " x " + text(one.input.height) +
         " x " + text(one.input.width) + ", fan-in " + text(one.fan_in);
}

// The result in float64, and the bound of rounding errors in any order of summation.
Expected expect(const CondensedView& view, const Case& one, const float* x,
                const ConvEpilogue& epilogue) {
  const ConvGeometry& g = one.geometry;
  const int64_t height = g.output_size(0, one.input.height);
  const int64_t width = g.output_size(1, one.input.width);
  const double eps = std::numeric_limits<float>::epsilon();
  Expected expected;
  size_t at = 0;
  for (int64_t n = 0; n < one.input.batch; ++n) {
    int64_t stored = 0;
    for (int64_t o = 0; o < g.out_channels; ++o) {
      const bool active = stored < view.active && view.rows[stored] == o;
      const int64_t entries = active ? view.true_fan_in(stored) : 0;
      const int64_t first = n * g.in_channels + o / g.group_outputs() * g.group_inputs();
      for (int64_t i = 0; i < height; ++i)
        for (int64_t j = 0; j < width; ++j, ++at) {
          double sum = view.bias[o], magnitude = std::abs(sum);
          for (int64_t e = 0; e < entries; ++e) {
            const ConvTap tap = conv_tap(g, view.index(stored, e));
            const int64_t row = i * g.strides[0] - g.pads[0] + tap.row;
            const int64_t column = j * g.strides[1] - g.pads[1] + tap.column;
            if (row < 0 || row >= one.input.height || column < 0 || column >= one.input.width)
              continue;
            const double term =
                static_cast<double>(view.value(stored, e)) *
                static_cast<double>(
                    x[((first + tap.channel) * one.input.height + row) * one.input.width + column]);
            sum += term;
            magnitude += std::abs(term);
          }
          sum += epilogue.residual[at];
          magnitude += std::abs(static_cast<double>(epilogue.residual[at]));
          if (sum < epilogue.clip_min) sum = epilogue.clip_min;
          if (sum > epilogue.clip_max) sum = epilogue.clip_max;
          double bound = static_cast<double>(entries + 2) * eps * magnitude;
          if (!epilogue.gate.open()) {
            const double scale = epilogue.gate.scale, shift = epilogue.gate.shift;
            bound = (1 + std::max(std::abs(shift), std::abs(1 - shift))) * bound +
                    3 * eps * std::abs(sum);
            sum *= std::isnan(sum) ? sum : std::clamp(scale * sum + shift, 0.0, 1.0);
          }
          expected.y.push_back(sum);
          expected.bound.push_back(bound);
        }
      stored += active;
    }
  }
  return expected;
}

// The output between guards, aligned to a float only.
std::vector<float> run(const PackedConv& conv, const Case& one, const std::vector<float>& x,
                       size_t outputs, const ConvEpilogue& epilogue, const Executor& executor,
                       const std::string& where) {
  constexpr float kGuard = 12345.0f;
  std::vector<float> y(outputs + 2, kGuard);
  conv.run(x.data() + 1, one.input, y.data() + 1, epilogue, executor);
  expect_that(y.front() == kGuard && y.back() == kGuard, where + ": wrote outside y");
  return std::vector<float>(y.begin() + 1, y.end() - 1);
}

// The case, turned into a depthwise layer without pruned positions for a row that supports nothing
// else.
Case suited(const ConvKernelRow& row, Case one) {
  if (row.fits != is_whole_depthwise) return one;
  one.geometry.group = one.geometry.out_channels = one.geometry.in_channels;
  one.fan_in = one.geometry.taps();
  one.padded = false;
  return one;
}

void check_case(const ConvKernelRow& row, const Case& given, std::mt19937& random) {
  const Case one = suited(row, given);
  const ConvGeometry& g = one.geometry;
  const std::string where = row.name + ", " + name_of(one);
  const bool whole = row.fits == is_whole_depthwise;
  LayerSpec spec{
      g.group_inputs() * g.taps(), g.out_channels, one.fan_in,
      whole ? g.out_channels : std::max<int64_t>(1, g.out_channels - g.out_channels / 5)};
  spec.padded = one.padded;
  spec.values = one.values;
  const Layer layer = make_layer(spec, random);
  const CondensedView view = layer.view();
  std::string wrong = validate(view, g);
  if (wrong.empty()) wrong = validate(g, one.input);
  expect_that(wrong.empty(), where + ": " + wrong);
  if (!wrong.empty()) return;
  const InlineExecutor alone;
  const auto conv = PackedConv::pack_kernel(view, g, row.name, alone);
  expect_that(conv->holds(view, g), where + ": does not hold what was packed");
  const size_t inputs =
      static_cast<size_t>(one.input.batch * g.in_channels * one.input.height * one.input.width);
  const size_t outputs =
      static_cast<size_t>(one.input.batch * g.out_channels * g.output_size(0, one.input.height) *
                          g.output_size(1, one.input.width));
  std::vector<float> x = random_floats(inputs + 1, random);
  if (one.special != 0.0f)
    for (int i = 0; i < 3; ++i) x[1 + random() % inputs] = one.special;
  const std::vector<float> residual = random_floats(outputs, random);
  ConvEpilogue epilogue{{residual.data(), -2.0f, 3.0f}, {}};
  if (one.gated) epilogue.gate = {1.0f / 6.0f, 0.5f};
  const Expected expected = expect(view, one, x.data() + 1, epilogue);
  const std::vector<float> y = run(*conv, one, x, outputs, epilogue, alone, where);
  wrong = difference(expected, y.data(), g.out_channels);
  expect_that(wrong.empty(), where + ": " + wrong);
  std::vector<float> plain(outputs);
  run_plain_conv(view, g, x.data() + 1, one.input, plain.data(), epilogue);
  wrong = difference(expected, plain.data(), g.out_channels);
  expect_that(wrong.empty(), where + ": the plain path: " + wrong);
  if (one.threads == 1) return;
  const ThreadExecutor threads(one.threads);
  const std::vector<float> split = run(*conv, one, x, outputs, epilogue, threads, where);
  for (size_t i = 0; i < outputs; ++i)
    if (split[i] != y[i] && !(std::isnan(split[i]) && std::isnan(y[i])))
      return expect_that(false, where + ": differs with threads");
}

int64_t between(int64_t low, int64_t high, std::mt19937& random) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

ConvGeometry random_geometry(std::mt19937& random) {
  ConvGeometry g;
  g.group = random() % 4 == 0 ? between(2, 3, random) : 1;
  g.in_channels = g.group * between(1, 12, random);
  g.out_channels = g.group * between(1, 30, random);
  for (int axis = 0; axis < 2; ++axis) {
    g.kernel[axis] = between(1, 4, random);
    g.strides[axis] = between(1, 3, random);
    g.dilations[axis] = between(1, 2, random);
  }
  for (int64_t& pad : g.pads) pad = between(0, 2, random);
  return g;
}

void check_row(const ConvKernelRow& row) {
  std::mt19937 random(1);
  for (int i = 0; i < 150; ++i) {
    Case one{random_geometry(random), {}, 1};
    one.input = {between(1, 3, random), between(10, 17, random), between(10, 40, random)};
    one.fan_in = between(1, one.geometry.group_inputs() * one.geometry.taps(), random);
    one.padded = i % 3 == 0;
    one.values = i % 5 == 0   ? ValueType::kFloat16
                 : i % 5 == 1 ? ValueType::kBfloat16
                              : ValueType::kFloat32;
    one.special = i % 4 == 0 ? (i % 8 == 0 ? kInf : std::nanf("")) : 0.0f;
    one.threads = i % 10 == 0 ? 3 : 1;
    one.gated = i % 2 == 1;
    check_case(row, one, random);
  }
  // 1 x 1, whose images are single rows of pixels: all tails of tiles.
  ConvGeometry g;
  g.in_channels = 20;
  g.out_channels = 13;
  for (int64_t pixels = 1; pixels <= 70; ++pixels)
    check_case(row, {g, {1 + pixels % 2, 1, pixels}, 3}, random);
  // More columns than a segment and more outputs than a block; large enough to be split.
  g.in_channels = 100;
  g.out_channels = 400;
  g.kernel[0] = g.kernel[1] = 3;
  for (int64_t& pad : g.pads) pad = 1;
  Case large{g, {1, 9, 9}, 90};
  large.threads = 4;
  check_case(row, large, random);
}

}  // namespace

void check_convolutions() { check_each_kernel(conv_kernel_table(), check_row); }

}  // namespace fanin
