// Dynamic quantization of each instruction set, bit for bit. Compiled without contraction to
// multiply-adds, as the kernels are.
#include "tests/dynamic_quantize_check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/dynamic_quantize.h"
#include "core/thread_executor.h"
#include "tests/row_checks.h"

namespace fanin {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();

struct Result {
  std::vector<uint8_t> values;
  std::vector<float> scales;
  std::vector<int32_t> zero_points;
};

// As ONNX defines DynamicQuantizeLinear, one number at a time.
void quantize_as_defined(const float* x, int64_t count, Result& to) {
  float low = 0.0f, high = 0.0f;
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
    finite = finite && std::isfinite(x[i]);
  }
  const float step = (high - low) / 255.0f;
  const float scale = !finite || step == 0.0f ? 1.0f : step;
  const float zero_point = finite ? std::nearbyint(std::clamp(-low / scale, 0.0f, 255.0f)) : 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    const float quotient = x[i] / scale;
    const float value = std::isnan(quotient) ? 0.0f : std::nearbyint(quotient) + zero_point;
    to.values.push_back(static_cast<uint8_t>(std::clamp(value, 0.0f, 255.0f)));
  }
  to.scales.push_back(finite ? scale : kNan);
  to.zero_points.push_back(static_cast<int32_t>(zero_point));
}

Result expected(const float* x, int64_t rows, int64_t columns, bool per_row) {
  Result result;
  if (per_row) {
    for (int64_t row = 0; row < rows; ++row)
      quantize_as_defined(x + row * columns, columns, result);
    return result;
  }
  quantize_as_defined(x, rows * columns, result);
  result.scales.resize(static_cast<size_t>(rows), result.scales[0]);
  result.zero_points.resize(static_cast<size_t>(rows), result.zero_points[0]);
  return result;
}

struct Kind {
  const char* name;
  float (*number)(std::mt19937& random, int64_t at);
};

float uniform(std::mt19937& random, float low, float high) {
  return std::uniform_real_distribution<float>(low, high)(random);
}

// Halves of a unit, or their neighbors; the range is 255 units.
float near_tie(std::mt19937& random, int64_t at, float unit) {
  if (at % 40 == 0) return -100.0f * unit;
  if (at % 40 == 1) return 155.0f * unit;
  const float tie = (static_cast<float>(static_cast<int>(random() % 255) - 100) + 0.5f) * unit;
  switch (random() % 4) {
    case 0:
      return std::nextafter(tie, kInf);
    case 1:
      return std::nextafter(tie, -kInf);
    default:
      return tie;
  }
}

constexpr Kind kKinds[] = {
    {"normal",
     [](std::mt19937& random, int64_t) { return std::normal_distribution<float>()(random); }},
    {"positive", [](std::mt19937& random, int64_t) { return uniform(random, 3.0f, 5.0f); }},
    {"negative", [](std::mt19937& random, int64_t) { return uniform(random, -5.0f, -3.0f); }},
    {"zeros", [](std::mt19937&, int64_t at) { return at % 2 == 0 ? 0.0f : -0.0f; }},
    {"ties of a power of two",
     [](std::mt19937& random, int64_t at) { return near_tie(random, at, 0.25f); }},
    {"ties", [](std::mt19937& random, int64_t at) { return near_tie(random, at, 0.0123f); }},
    {"ties of small numbers",
     [](std::mt19937& random, int64_t at) { return near_tie(random, at, 1.3e-38f); }},
    {"denormals",
     [](std::mt19937& random, int64_t) { return static_cast<float>(random() % 999) * kDenormal; }},
    {"least denormals",
     [](std::mt19937& random, int64_t) { return static_cast<float>(random() % 200) * kDenormal; }},
    {"tiny and large",
     [](std::mt19937& random, int64_t at) {
       return at % 3 == 0 ? 1e-42f : uniform(random, -1e10f, 1e10f);
     }},
    {"huge", [](std::mt19937& random, int64_t) { return uniform(random, -0.5f, 0.5f) * kLargest; }},
    {"a range that overflows",
     [](std::mt19937&, int64_t at) { return at % 2 == 0 ? kLargest : -kLargest; }},
    {"large scales", [](std::mt19937& random, int64_t) { return uniform(random, 0.0f, 1e33f); }},
    {"NaN", [](std::mt19937& random, int64_t) { return random() % 50 == 0 ? kNan : 1e30f; }},
    {"infinities",
     [](std::mt19937& random, int64_t) {
       return random() % 50 == 0 ? kInf : random() % 50 == 0 ? -kInf : 0.7f;
     }},
};

class Check {
 public:
  void run(const Kind& kind, int64_t rows, int64_t columns, int64_t offset,
           const Executor& executor) {
    std::vector<float> numbers(static_cast<size_t>(offset + rows * columns));
    float* x = numbers.data() + offset;
    for (int64_t i = 0; i < rows * columns; ++i) x[i] = kind.number(random_, i);
    for (const bool per_row : {false, true}) {
      const Result want = expected(x, rows, columns, per_row);
      for (const Isa isa : supported_isas())
        compare(want, quantized(x, rows, columns, per_row, isa, executor),
                std::string("dynamic quantization, ") + isa_name(isa) + ", " + kind.name + ", " +
                    std::to_string(rows) + " x " + std::to_string(columns) +
                    (per_row ? ", per row" : ""));
    }
  }

 private:
  static Result quantized(const float* x, int64_t rows, int64_t columns, bool per_row, Isa isa,
                          const Executor& executor) {
    constexpr uint8_t kGuard = 0xa5;
    std::vector<uint8_t> bytes(static_cast<size_t>(rows * columns + 2), kGuard);
    Result result;
    result.scales.resize(static_cast<size_t>(rows));
    result.zero_points.resize(static_cast<size_t>(rows));
    const DynamicQuantization to{bytes.data() + 1, result.scales.data(), result.zero_points.data()};
    dynamic_quantize(x, rows, columns, per_row, to, isa, executor);
    if (bytes.front() == kGuard && bytes.back() == kGuard)
      result.values.assign(bytes.begin() + 1, bytes.end() - 1);
    return result;
  }

  static void compare(const Result& want, const Result& got, const std::string& where) {
    const bool same_scales =
        want.scales.size() == got.scales.size() &&
        std::equal(want.scales.begin(), want.scales.end(), got.scales.begin(),
                   [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); });
    expect_that(same_scales && want.values == got.values && want.zero_points == got.zero_points,
                where);
  }

  std::mt19937 random_{4};
};

}  // namespace

void check_dynamic_quantization() {
  Check check;
  const InlineExecutor alone;
  for (const Kind& kind : kKinds) {
    for (int64_t columns = 0; columns <= 70; ++columns)
      check.run(kind, 1 + columns % 3, columns, columns % 5, alone);
    check.run(kind, 30, 1000, 1, alone);
    check.run(kind, 7, 333, 3, ThreadExecutor(3));
  }
  std::printf("dynamic quantization compared\n");
}

}  // namespace fanin
