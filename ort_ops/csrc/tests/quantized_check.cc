// Compares kernels of int8 layers with an oracle, bit for bit. Compiled without contraction to
// multiply-adds, as the kernels are.
#include "tests/quantized_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/quantized_gemm.h"
#include "core/thread_executor.h"
#include "kernels/quantized_dispatch.h"
#include "tests/random_layer.h"
#include "tests/row_checks.h"

namespace fanin {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Inputs {
  int64_t batch;
  QuantizedType x = QuantizedType::kUint8;
  QuantizedType y = QuantizedType::kUint8;
  bool residual = false;
  bool per_sample = false;
  float clip_min = -kInf;
  float clip_max = kInf;
  size_t threads = 1;
};

// Random arguments of a run, and its result.
class Run {
 public:
  Run(const CondensedView& view, const Inputs& inputs, std::mt19937& random)
      : view_(view), inputs_(inputs), x_(bytes(inputs.batch * view.in_features + 1, random)) {
    const auto outputs = static_cast<size_t>(view.out_features);
    const auto samples = static_cast<size_t>(inputs.batch);
    multipliers_ = random_floats(outputs, random);
    for (float& multiplier : multipliers_)
      multiplier = (std::abs(multiplier) + 0.1f) * 0.02f / static_cast<float>(view.fan_in + 1);
    sample_multipliers_ = random_floats(samples, random);
    for (float& multiplier : sample_multipliers_) multiplier = std::abs(multiplier) + 0.1f;
    float_bias_ = random_floats(outputs, random);
    for (size_t o = 0; o < outputs; ++o)
      bias_.push_back(static_cast<int32_t>(random() % 20001) - 10000);
    x_input.data = x_.data() + 1;
    x_input.type = inputs.x;
    x_input.zero_point = random_point(inputs.x, random);
    for (size_t s = 0; s < samples; ++s) zero_points_.push_back(random_point(inputs.x, random));
    epilogue.type = inputs.y;
    epilogue.multipliers = multipliers_.data();
    if (inputs.per_sample) {
      x_input.zero_points = zero_points_.data();
      epilogue.sample_multipliers = sample_multipliers_.data();
    }
    if (inputs.y == QuantizedType::kFloat32) {
      epilogue.float_bias = float_bias_.data();
      float_residual_ = random_floats(samples * outputs + 1, random);
      if (inputs.residual) epilogue.residual = float_residual_.data() + 1;
    } else {
      epilogue.bias = bias_.data();
      epilogue.zero_point = random_point(inputs.y, random);
      epilogue.residual_zero_point = random_point(inputs.y, random);
      epilogue.residual_multiplier = 0.7f;
      residual_ = bytes(inputs.batch * view.out_features + 1, random);
      if (inputs.residual) epilogue.residual = residual_.data() + 1;
    }
    epilogue.clip_min = inputs.clip_min;
    epilogue.clip_max = inputs.clip_max;
  }

  // The bytes of y.
  std::vector<uint8_t> expected() const {
    std::vector<uint8_t> y;
    for (int64_t b = 0; b < inputs_.batch; ++b)
      for (int64_t o = 0, stored = 0; o < view_.out_features; ++o) {
        int64_t sum = epilogue.bias ? epilogue.bias[o] : 0;
        if (stored < view_.active && view_.rows[stored] == o) {
          for (int64_t j = 0; j < view_.true_fan_in(stored); ++j)
            sum += static_cast<int64_t>(view_.value(stored, j)) * x_at(b, view_.index(stored, j));
          ++stored;
        }
        append(finish(static_cast<float>(sum), b, o), y);
      }
    return y;
  }

  std::vector<uint8_t> y(const PackedQuantizedGemm* gemm, const Executor& executor,
                         const std::string& where) const {
    constexpr uint8_t kGuard = 0xa5;
    const size_t bytes = static_cast<size_t>(inputs_.batch * view_.out_features) * element();
    std::vector<uint8_t> y(bytes + 2 * element(), kGuard);
    uint8_t* to = y.data() + element();
    if (gemm)
      gemm->run(x_input, inputs_.batch, to, epilogue, executor);
    else
      run_plain_quantized(view_, x_input, inputs_.batch, to, epilogue);
    expect_that(y.front() == kGuard && y.back() == kGuard, where + ": wrote outside y");
    return {y.begin() + static_cast<int64_t>(element()), y.end() - static_cast<int64_t>(element())};
  }

  QuantizedInput x_input;
  QuantizedEpilogue epilogue;

 private:
  static std::vector<uint8_t> bytes(int64_t count, std::mt19937& random) {
    std::vector<uint8_t> result(static_cast<size_t>(count));
    for (uint8_t& byte : result) byte = static_cast<uint8_t>(random());
    return result;
  }

  static int32_t random_point(QuantizedType type, std::mt19937& random) {
    const auto byte = static_cast<int32_t>(random() % 256);
    if (type == QuantizedType::kFloat32) return 0;
    return type == QuantizedType::kInt8 ? byte - 128 : byte;
  }

  static int32_t as_integer(const void* from, QuantizedType type, int64_t at) {
    return type == QuantizedType::kInt8 ? static_cast<const int8_t*>(from)[at]
                                        : static_cast<const uint8_t*>(from)[at];
  }

  size_t element() const { return inputs_.y == QuantizedType::kFloat32 ? sizeof(float) : 1; }

  int64_t x_at(int64_t b, int64_t column) const {
    const int32_t zero_point = x_input.zero_points ? x_input.zero_points[b] : x_input.zero_point;
    return as_integer(x_input.data, inputs_.x, b * view_.in_features + column) - zero_point;
  }

  // Before it is rounded.
  float finish(float sum, int64_t b, int64_t o) const {
    const int64_t at = b * view_.out_features + o;
    float value = sum * (epilogue.sample_multipliers
                             ? epilogue.sample_multipliers[b] * epilogue.multipliers[o]
                             : epilogue.multipliers[o]);
    if (epilogue.float_bias) value += epilogue.float_bias[o];
    if (epilogue.residual && inputs_.y == QuantizedType::kFloat32)
      value += static_cast<const float*>(epilogue.residual)[at];
    else if (epilogue.residual)
      value += static_cast<float>(as_integer(epilogue.residual, inputs_.y, at) -
                                  epilogue.residual_zero_point) *
               epilogue.residual_multiplier;
    return std::min(std::max(value, epilogue.clip_min), epilogue.clip_max);
  }

  void append(float value, std::vector<uint8_t>& y) const {
    if (inputs_.y == QuantizedType::kFloat32) {
      uint8_t bytes[sizeof(value)];
      std::memcpy(bytes, &value, sizeof(value));
      y.insert(y.end(), bytes, bytes + sizeof(value));
      return;
    }
    const double low = inputs_.y == QuantizedType::kInt8 ? -128.0 : 0.0;
    const double rounded = std::nearbyint(static_cast<double>(value)) + epilogue.zero_point;
    y.push_back(static_cast<uint8_t>(static_cast<int>(std::clamp(rounded, low, low + 255.0))));
  }

  const CondensedView& view_;
  const Inputs inputs_;
  std::vector<uint8_t> x_, residual_;
  std::vector<float> multipliers_, sample_multipliers_, float_bias_, float_residual_;
  std::vector<int32_t> bias_, zero_points_;
};

// Runs one kernel on one layer with all inputs.
void check_layer(const QuantizedKernelRow& row, LayerSpec spec, std::initializer_list<Inputs> all,
                 std::mt19937& random) {
  spec.values = ValueType::kInt8;
  const Layer layer = make_layer(spec, random);
  const CondensedView view = layer.view();
  const std::string shape = row.name + ", " + std::to_string(spec.in_features) + " -> " +
                            std::to_string(spec.out_features) + ", fan-in " +
                            std::to_string(spec.fan_in);
  const std::string unsound = validate_quantized(view);
  expect_that(unsound.empty(), shape + ": " + unsound);
  const InlineExecutor alone;
  const auto gemm = PackedQuantizedGemm::pack_kernel(view, {}, row.name, alone);
  expect_that(gemm->holds(view), shape + ": does not hold what was packed");
  for (const Inputs& inputs : all) {
    const std::string where = shape + ", batch " + std::to_string(inputs.batch);
    const Run run(view, inputs, random);
    const std::vector<uint8_t> want = run.expected();
    expect_that(run.y(gemm.get(), alone, where) == want, where);
    expect_that(run.y(nullptr, alone, where) == want, where + ": the plain path");
    if (inputs.threads > 1)
      expect_that(run.y(gemm.get(), ThreadExecutor(inputs.threads), where) == want,
                  where + ", " + std::to_string(inputs.threads) + " threads");
  }
}

void check_row(const QuantizedKernelRow& row) {
  std::mt19937 random(3);
  constexpr QuantizedType kU8 = QuantizedType::kUint8, kS8 = QuantizedType::kInt8,
                          kF32 = QuantizedType::kFloat32;
  const auto between = [&random](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int64_t fan_in = 1; fan_in <= 40; ++fan_in) {
    const int64_t in = between(fan_in, 8 * fan_in), out = between(1, 100);
    LayerSpec spec{in, out, fan_in, between(0, out)};
    spec.padded = fan_in % 2 == 0;
    spec.indices = fan_in % 3 == 0 ? IndexType::kUint16 : IndexType::kInt32;
    check_layer(row, spec,
                {{1},
                 {2, kS8, kS8, true},
                 {fan_in % 7 + 3, kU8, kF32, true, true, -0.5f, 1.5f},
                 {fan_in, kS8, kU8, false, true, 0.0f, 6.0f}},
                random);
  }
  for (int64_t in : {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 500})
    for (int64_t out : {1, 31, 32, 33, 64, 65})
      check_layer(
          row, {in, out, std::max<int64_t>(1, in / 7), out},
          {{1, kU8, kU8, true}, {in % 5 + 1, kU8, kS8, false, true}, {in % 11 + 8, kS8, kF32}},
          random);
  for (int64_t batch = 3; batch <= 40; ++batch)
    check_layer(row, {203, 37, 21, 35}, {{batch, kU8, kU8, batch % 2 == 0}}, random);
  check_layer(row, {130, 70, 130, 70}, {{1}, {9}, {40}}, random);
  for (int64_t in : {65535, 65536, 65537, 200000})
    check_layer(row, {in, 40, 300, 39, Mask::kUniform, true}, {{1}, {9}}, random);
  check_layer(row, {1200000, 40, 5, 40, Mask::kEnds}, {{1}, {2}}, random);
  // Rows in another order than the outputs.
  check_layer(row, {1500, 200, 40, 190, Mask::kClustered, true},
              {{1}, {4, kU8, kU8, true}, {19, kU8, kF32, true}}, random);
  check_layer(row, {3000, 400, 100, 100, Mask::kClustered},
              {{1}, {8, kS8, kS8, true, true}, {70, kU8, kF32, true, false, -kInf, kInf, 3}},
              random);
  check_layer(row, {8, 5, 3, 0}, {{1}, {30, kU8, kU8, true}}, random);
  check_layer(row, {8, 5, 0, 0}, {{1}, {30, kU8, kU8, true}}, random);
  // Large enough to be split.
  check_layer(row, {900, 700, 150, 650},
              {{2, kS8, kS8, true, false, -20.0f, 20.0f, 3},
               {20, kU8, kU8, true, true, -20.0f, 20.0f, 7},
               {150, kS8, kF32, false, false, -kInf, kInf, 5}},
              random);
}

// What is chosen for a layer of 10 % density depends on the arguments alone, not on this CPU.
void check_choices_of_zen4() {
  expect_that(cpu_kind_of(true, 25) == CpuKind::kZen4, "AMD, family 25");
  expect_that(cpu_kind_of(true, 26) == CpuKind::kOther, "AMD, family 26");
  expect_that(cpu_kind_of(false, 25) == CpuKind::kOther, "another vendor, family 25");
#if defined(__x86_64__)
  struct Choice {
    CpuKind cpu;
    BatchRange batches;
    int64_t batch;
    const char* layout;
  };
  constexpr CpuKind kZen4 = CpuKind::kZen4, kOther = CpuKind::kOther;
  constexpr BatchRange kOpen;
  constexpr Choice kChoices[] = {
      {kZen4, {1, 1}, 1, "window256nofetch"}, {kOther, {1, 1}, 1, "window128"},
      {kZen4, kOpen, 1, "window256nofetch"},  {kOther, kOpen, 1, "window128"},
      {kZen4, {2, 2}, 2, "window128two"},     {kOther, {2, 2}, 2, "window64"},
      {kZen4, {3, 3}, 3, "window64four"},     {kZen4, {4, 4}, 4, "window64four"},
      {kOther, {4, 4}, 4, "window64"},        {kZen4, {5, 5}, 5, "window64"},
      {kZen4, {1, 8}, 2, "window64"},         {kZen4, kOpen, 3, "window64"},
      {kZen4, {256, 256}, 256, "window64"},
  };
  std::mt19937 random(5);
  LayerSpec spec{640, 100, 64, 100};
  spec.values = ValueType::kInt8;
  const Layer layer = make_layer(spec, random);
  for (const Choice& choice : kChoices) {
    const QuantizedUse use{Isa::kAvx512vbmi, choice.cpu, choice.batches};
    const std::string name = select_quantized_kernel(use, choice.batch, layer.view()).name;
    expect_that(name == std::string("i8-gemm-") + choice.layout + "-avx512vbmi",
                name + " is chosen for a batch of " + std::to_string(choice.batch) +
                    " instead of " + choice.layout);
  }
  const QuantizedUse narrower{Isa::kAvx512vnni, kZen4, {1, 1}};
  expect_that(select_quantized_kernel(narrower, 1, layer.view()).isa == Isa::kAvx512vnni,
              "a kernel of AVX-512 VBMI is chosen without it");
#endif
}

}  // namespace

void check_quantized() {
  check_choices_of_zen4();
  check_each_kernel(quantized_kernel_table(), check_row);
}

}  // namespace fanin
