#include "tests/quantized_check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/quantized_gemm.h"
#include "core/thread_executor.h"
#include "kernels/quantized_dispatch.h"
#include "tests/random_layer.h"

namespace fanin {
namespace {

int failures = 0;

void expect_that(bool right, const std::string& what) {
  if (right) return;
  if (++failures <= 20) std::printf("WRONG %s\n", what.c_str());
}

// A layer of int8 weights, all of the extreme value if there is one.
struct Int8Layer {
  Layer layer;
  std::vector<int8_t> values;

  Int8Layer(const LayerSpec& spec, int extreme, std::mt19937& random)
      : layer(make_layer(spec, random)) {
    for (const float value : layer.values32) {
      const float scaled = extreme != 0 ? static_cast<float>(extreme) : value * 64.0f;
      values.push_back(value == 0.0f ? int8_t{0}
                                     : static_cast<int8_t>(std::clamp(scaled, -128.0f, 127.0f)));
    }
  }

  CondensedView view() const {
    CondensedView view = layer.view();
    view.values = values.data();
    view.value_type = ValueType::kInt8;
    view.bias = nullptr;
    return view;
  }
};

// One run, whose arguments vary with its number.
struct Case {
  int64_t batch;
  int number;
  bool extreme = false;  // x and its zero point
  size_t threads = 1;
};

uint8_t random_byte(std::mt19937& random) { return static_cast<uint8_t>(random() >> 24); }

void check_case(const CondensedView& view, const PackedQuantizedGemm& gemm, const Case& run,
                std::mt19937& random, const std::string& where) {
  const auto batch = static_cast<size_t>(run.batch);
  const auto outputs = static_cast<size_t>(view.out_features);
  const int number = run.number;
  const QuantizedType x_type = number % 2 == 0 ? QuantizedType::kUint8 : QuantizedType::kInt8;
  const int32_t least_x = x_type == QuantizedType::kInt8 ? -128 : 0;

  // As uint8: 255 is the extreme value of both types after their zero point.
  std::vector<uint8_t> x(batch * static_cast<size_t>(view.in_features) + 1);
  for (uint8_t& byte : x) {
    byte = run.extreme ? 255 : random_byte(random);
    if (x_type == QuantizedType::kInt8) byte ^= 0x80;
  }
  QuantizedInput input;
  input.data = x.data() + 1;
  input.type = x_type;
  input.zero_point = least_x + (run.extreme ? 0 : number * 37 % 256);
  std::vector<int32_t> zero_points(batch);
  for (int32_t& zero_point : zero_points) zero_point = least_x + random_byte(random);
  if (number % 3 == 1) input.zero_points = zero_points.data();

  QuantizedEpilogue epilogue;
  epilogue.type = static_cast<QuantizedType>(number % 3);
  const bool floats = epilogue.type == QuantizedType::kFloat32;
  std::vector<float> multipliers(outputs), sample_multipliers(batch), float_bias(outputs);
  std::vector<int32_t> bias(outputs);
  const float fan_in = static_cast<float>(std::max<int64_t>(view.fan_in, 1));
  for (float& m : multipliers)
    m = (1.0f + static_cast<float>(random_byte(random))) / (4e4f * std::sqrt(fan_in));
  for (float& m : sample_multipliers) m = 0.5f + static_cast<float>(random_byte(random)) / 256.0f;
  for (float& b : float_bias) b = static_cast<float>(random_byte(random)) - 128.0f;
  for (int32_t& b : bias) b = static_cast<int32_t>(random()) >> (number % 4 == 0 ? 0 : 12);
  epilogue.multipliers = multipliers.data();
  if (number % 4 < 2) epilogue.bias = bias.data();
  if (number % 5 < 2) epilogue.sample_multipliers = sample_multipliers.data();
  if (floats && number % 2 == 0) epilogue.float_bias = float_bias.data();
  std::vector<float> float_residual = random_floats(batch * outputs, random);
  std::vector<uint8_t> residual(batch * outputs);
  for (uint8_t& byte : residual) byte = random_byte(random);
  if (number % 4 == 1 || number % 4 == 2) {
    epilogue.residual = floats ? static_cast<const void*>(float_residual.data()) : residual.data();
    if (!floats) {
      epilogue.residual_multiplier = 0.37f;
      epilogue.residual_zero_point = 11;
    }
  }
  if (number % 3 == 2) {
    epilogue.clip_min = -0.5f;
    epilogue.clip_max = 77.3f;
  }
  if (!floats)
    epilogue.zero_point = number * 91 % 256 - (epilogue.type == QuantizedType::kInt8 ? 128 : 0);

  constexpr uint8_t kGuard = 0xa5;
  const size_t bytes = batch * outputs * (floats ? sizeof(float) : 1);
  std::vector<uint8_t> expected(bytes), y(bytes + 2, kGuard);
  run_plain_quantized(view, input, run.batch, expected.data(), epilogue);
  const InlineExecutor alone;
  const ThreadExecutor several(run.threads);
  const Executor& executor = run.threads > 1 ? static_cast<const Executor&>(several) : alone;
  // A byte off any alignment, unless y is an array of floats.
  std::vector<float> float_y(floats ? batch * outputs : 0);
  uint8_t* to = floats ? reinterpret_cast<uint8_t*>(float_y.data()) : y.data() + 1;
  gemm.run(input, run.batch, to, epilogue, executor);
  expect_that(y.front() == kGuard && y.back() == kGuard, where + ": wrote outside y");
  expect_that(std::memcmp(to, expected.data(), bytes) == 0,
              where + ", batch " + std::to_string(run.batch) + ": differs from the scalar kernel");
}

void check_layer(const QuantizedKernelRow& row, const LayerSpec& spec,
                 std::initializer_list<Case> cases, std::mt19937& random, int extreme = 0) {
  const Int8Layer layer(spec, extreme, random);
  const CondensedView view = layer.view();
  const std::string where = row.name + ", " + std::to_string(spec.in_features) + " -> " +
                            std::to_string(spec.out_features) + ", fan-in " +
                            std::to_string(spec.fan_in);
  const std::string unsound = validate_quantized(view);
  expect_that(unsound.empty(), where + ": " + unsound);
  const auto gemm = PackedQuantizedGemm::pack_kernel(view, {}, row.name, InlineExecutor());
  expect_that(gemm->holds(view), where + ": does not hold what was packed");
  for (const Case& run : cases) check_case(view, *gemm, run, random, where);
}

void check_row(const QuantizedKernelRow& row) {
  std::mt19937 random(1);
  const auto between = [&random](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int64_t fan_in = 1; fan_in <= 40; ++fan_in) {
    const int64_t in = between(fan_in, 8 * fan_in), out = between(1, 100);
    LayerSpec spec{in, out, fan_in, between(0, out)};
    spec.padded = fan_in % 2 == 0;
    spec.indices = fan_in % 3 == 0 ? IndexType::kUint16 : IndexType::kInt32;
    const int n = static_cast<int>(fan_in);
    check_layer(row, spec, {{1, n}, {2, n + 1}, {n % 7 + 3, n + 2}, {fan_in + 9, n + 3}}, random);
  }
  for (int64_t in : {1, 2, 3, 4, 5, 31, 32, 33, 63, 64, 65, 127, 128, 129, 500})
    for (int64_t out : {1, 7, 15, 16, 17, 63, 64, 65}) {
      const int n = static_cast<int>(in + out);
      check_layer(row, {in, out, std::max<int64_t>(1, in / 5), out},
                  {{1, n}, {in % 5 + 1, n + 1}, {in % 11 + 8, n + 2}}, random);
    }
  for (int64_t batch = 3; batch <= 80; batch += batch < 20 ? 1 : 5)
    check_layer(row, {203, 37, 21, 35}, {{batch, static_cast<int>(batch)}}, random);
  check_layer(row, {130, 70, 130, 70}, {{1, 0}, {9, 1}, {70, 2}}, random);
  // The most and the least that sums can be.
  for (int extreme : {-128, 127}) {
    check_layer(row, {kMaxQuantizedFanIn, 3, kMaxQuantizedFanIn, 3}, {{1, 0, true}, {9, 3, true}},
                random, extreme);
    check_layer(row, {1030, 20, 1030, 20}, {{1, 1, true}, {20, 4, true}}, random, extreme);
  }
  check_layer(row, {70000, 40, 300, 39, Mask::kUniform, true}, {{1, 0}, {9, 1}}, random);
  check_layer(row, {1200000, 40, 5, 40, Mask::kEnds}, {{1, 0}, {2, 1}}, random);
  check_layer(row, {1500, 200, 40, 190, Mask::kClustered, true}, {{1, 0}, {4, 1}, {19, 2}}, random);
  check_layer(row, {8, 5, 3, 0}, {{1, 0}, {30, 1}}, random);
  check_layer(row, {8, 5, 0, 0}, {{1, 0}, {30, 1}}, random);
  // Large enough to be split.
  check_layer(row, {900, 700, 150, 650}, {{2, 2, false, 3}, {20, 3, false, 7}, {70, 4, false, 2}},
              random);
}

}  // namespace

int check_quantized() {
  for (const QuantizedKernelRow& row : quantized_kernel_table()) {
    if (!is_supported(row.isa)) {
      std::printf("absent %s\n", row.name.c_str());
      continue;
    }
    const int before = failures;
    check_row(row);
    std::printf("%s %s\n", failures == before ? "right" : "wrong", row.name.c_str());
    std::fflush(stdout);
  }
  return failures;
}

}  // namespace fanin
