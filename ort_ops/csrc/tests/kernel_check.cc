// Compares every kernel of the dispatch table that this CPU supports with run_plain and a float64
// reference, and prints the kernels that the table selects. Needs no Python, so that it can run on
// emulated CPUs.
//   kernel_check [LIBRARY]   LIBRARY: libfanin_ort_ops.so, loaded first
// The exit status is 0 if all results are correct.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>

#include "core/shared_library.h"
#include "core/thread_executor.h"
#include "kernels/dispatch.h"
#include "tests/conv_check.h"
#include "tests/dynamic_quantize_check.h"
#include "tests/oracle.h"
#include "tests/quantized_check.h"
#include "tests/quantized_conv_check.h"
#include "tests/random_layer.h"
#include "tests/row_checks.h"

namespace fanin {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Inputs {
  int64_t batch;
  bool residual = false;
  float clip_min = -kInf;
  float clip_max = kInf;
  float special = 0.0f;  // in place of some x
  size_t threads = 1;
};

// A batch of inputs and its outputs, aligned to a float only, between guards.
class Run {
 public:
  Run(const CondensedView& view, const Inputs& inputs, std::mt19937& random)
      : view_(view),
        inputs_(inputs),
        x_(random_floats(static_cast<size_t>(inputs.batch * view.in_features) + 1, random)),
        residual_(random_floats(outputs() + 1, random)) {
    if (inputs.special != 0.0f)
      for (int64_t b = 0; b < inputs.batch; ++b)
        for (int i = 0; i < 3; ++i)
          x_[1 + static_cast<size_t>(b * view.in_features) +
             random() % static_cast<size_t>(view.in_features)] = inputs.special;
  }

  Epilogue epilogue() const {
    return {inputs_.residual ? residual_.data() + 1 : nullptr, inputs_.clip_min, inputs_.clip_max};
  }

  const float* x() const { return x_.data() + 1; }

  std::vector<float> y(const PackedGemm& gemm, const Executor& executor,
                       const std::string& where) const {
    constexpr float kGuard = 12345.0f;
    std::vector<float> y(outputs() + 2, kGuard);
    gemm.run(x(), inputs_.batch, y.data() + 1, epilogue(), executor);
    expect_that(y.front() == kGuard && y.back() == kGuard, where + ": wrote outside y");
    return std::vector<float>(y.begin() + 1, y.end() - 1);
  }

  std::vector<float> y_plain() const {
    std::vector<float> y(outputs());
    run_plain(view_, x(), inputs_.batch, y.data(), epilogue());
    return y;
  }

 private:
  size_t outputs() const { return static_cast<size_t>(inputs_.batch * view_.out_features); }

  const CondensedView& view_;
  const Inputs& inputs_;
  std::vector<float> x_;
  std::vector<float> residual_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The view as the row's kernel computes it.
CondensedView computed_by(const KernelRow& row, CondensedView view) {
  view.compute = row.compute;
  return view;
}

// The kernel of float32 weights with the same layout.
std::string twin_name(const KernelRow& row) {
  return "f32-gemm-" + row.name.substr(row.name.find("-gemm-") + 6);
}

// Runs one kernel on one layer with all inputs.
void check_layer(const KernelRow& row, LayerSpec spec, std::initializer_list<Inputs> all,
                 std::mt19937& random) {
  if (row.weights != ValueType::kFloat32) spec.values = row.weights;
  const Layer layer = make_layer(spec, random);
  const CondensedView view = computed_by(row, layer.view());
  const std::string shape = row.name + ", " + std::to_string(spec.in_features) + " -> " +
                            std::to_string(spec.out_features) + ", fan-in " +
                            std::to_string(spec.fan_in);
  const std::string unsound = validate(view);
  expect_that(unsound.empty(), shape + ": " + unsound);
  const InlineExecutor alone;
  const auto gemm = PackedGemm::pack_kernel(view, {}, row.name, alone);
  expect_that(gemm->holds(view), shape + ": does not hold what was packed");
  for (const Inputs& inputs : all) {
    const std::string where = shape + ", batch " + std::to_string(inputs.batch);
    const Run run(view, inputs, random);
    const Expected expected = expect(view, run.x(), inputs.batch, run.epilogue());
    const std::vector<float> y = run.y(*gemm, alone, where);
    std::string wrong = difference(expected, y.data(), view.out_features);
    expect_that(wrong.empty(), where + ": " + wrong);
    wrong = difference(expected, run.y_plain().data(), view.out_features);
    expect_that(wrong.empty(), where + ": the plain path: " + wrong);
    if (inputs.threads > 1)
      expect_that(same_bits(y, run.y(*gemm, ThreadExecutor(inputs.threads), where)),
                  where + ": differs with " + std::to_string(inputs.threads) + " threads");
    if (row.weights != ValueType::kFloat32 && row.compute == ValueType::kFloat32) {
      const Layer wide = layer.widened();
      const auto twin = PackedGemm::pack_kernel(wide.view(), {}, twin_name(row), alone);
      expect_that(same_bits(y, run.y(*twin, alone, where)),
                  where + ": differs from " + twin_name(row));
    }
  }
}

int64_t between(int64_t low, int64_t high, std::mt19937& random) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

void check_row(const KernelRow& row) {
  std::mt19937 random(1);
  constexpr IndexType k16 = IndexType::kUint16;
  for (int64_t fan_in = 1; fan_in <= 40; ++fan_in) {
    const int64_t in = between(fan_in, 8 * fan_in, random), out = between(1, 100, random);
    LayerSpec spec{in, out, fan_in, between(0, out, random)};
    spec.padded = fan_in % 2 == 0;
    spec.indices = fan_in % 3 == 0 ? k16 : IndexType::kInt32;
    check_layer(row, spec,
                {{1}, {2, true}, {fan_in % 7 + 3, true, -0.5f, 1.5f}, {fan_in, false, 0.0f, 6.0f}},
                random);
  }
  for (int64_t in : {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 500})
    for (int64_t out : {1, 31, 32, 33, 64, 65})
      check_layer(row, {in, out, std::max<int64_t>(1, in / 7), out},
                  {{1, true}, {in % 5 + 1, false, -1.0f}, {in % 11 + 8, true}}, random);
  for (int64_t batch = 3; batch <= 40; ++batch)
    check_layer(row, {203, 37, 21, 35}, {{batch, batch % 2 == 0}}, random);
  check_layer(row, {130, 70, 130, 70}, {{1}, {9}, {40}}, random);
  for (int64_t in : {65535, 65536, 65537, 200000})
    check_layer(row,
                {in, 40, 300, 39, Mask::kUniform, true, ValueType::kFloat32,
                 in <= 65536 ? k16 : IndexType::kInt32},
                {{1}, {9}}, random);
  // Columns further apart than 65,535 blocks of 16.
  check_layer(row, {1200000, 40, 5, 40, Mask::kEnds}, {{1}, {2}}, random);
  // Entries outside the steps, and sorted rows.
  check_layer(row, {3072, 64, 307, 64}, {{1}, {2}}, random);
  check_layer(row, {1500, 200, 40, 190, Mask::kClustered, true}, {{1}, {4, true}, {19}}, random);
  check_layer(row, {8, 5, 3, 0}, {{1}, {30, true}}, random);
  check_layer(row, {8, 5, 0, 0}, {{1}, {30, true}}, random);
  for (float special : {kInf, -kInf, kNan})
    for (int64_t batch : {1, 2, 5, 33})
      check_layer(row, {400, 120, 13, 110, Mask::kUniform, true},
                  {{batch, false, -kInf, kInf, special}, {batch, true, 0.0f, 6.0f, special}},
                  random);
  // Large enough to be split.
  check_layer(row, {900, 700, 150, 650},
              {{2, true, -2.0f, 2.0f, 0.0f, 3}, {20, true, -2.0f, 2.0f, 0.0f, 7}}, random);
}

// The best of the included instruction sets that have kernels for one sample.
Isa last_with_windows(Isa isa) {
  Isa last = Isa::kScalar;
  for (const KernelRow& row : kernel_table())
    if (includes(isa, row.isa) && row.batches.min == 1) last = std::max(last, row.isa);
  return last;
}

// Checks that a layer of 10 % density is packed for the requested instruction set, and prints the
// kernels.
void check_choices(ValueType values, ValueType compute) {
  std::mt19937 random(2);
  LayerSpec spec{640, 100, 64, 100};
  spec.values = values;
  const Layer layer = make_layer(spec, random);
  CondensedView view = layer.view();
  view.compute = compute;
  const std::string what =
      compute == ValueType::kBfloat16 ? "bfloat16-products" : value_type_name(values);
  for (Isa isa : supported_isas())
    for (int64_t batch : {1, 2, 8, 64}) {
      const InlineExecutor alone;
      const auto gemm = PackedGemm::pack(view, {batch, batch}, isa, alone);
      const std::string kernel = gemm->info().front().kernel;
      std::printf("choice %s %s batch %d: %s\n", isa_name(isa), what.c_str(),
                  static_cast<int>(batch), kernel.c_str());
      for (const KernelRow& row : kernel_table())
        if (row.name == kernel)
          expect_that(includes(isa, row.isa) && is_supported(row.isa), kernel + " is chosen");
      if (batch == 1) {
        const std::string end = std::string("-") + isa_name(last_with_windows(isa));
        expect_that(kernel.size() > end.size() &&
                        kernel.compare(kernel.size() - end.size(), end.size(), end) == 0,
                    kernel + " is chosen for " + isa_name(isa));
      }
      const Inputs inputs{batch, true, -1.0f, 1.0f};
      const Run run(view, inputs, random);
      const std::string wrong = difference(expect(view, run.x(), batch, run.epilogue()),
                                           run.y(*gemm, alone, kernel).data(), view.out_features);
      expect_that(wrong.empty(), kernel + ": " + wrong);
    }
}

// Compares vector code with element-wise code, for every float16, and for every float32 that
// narrows to one exactly or lies between two.
void check_float16() {
  for (uint32_t first = 0; first < 65536; first += 8) {
    uint16_t half[8], back[8];
    float wide[8];
    for (uint32_t i = 0; i < 8; ++i) half[i] = static_cast<uint16_t>(first + i);
    widen_float16(half, 8, wide);
    for (int i = 0; i < 8; ++i) {
      const float one = widen_float16(half[i]);
      expect_that(std::memcmp(&one, wide + i, sizeof(one)) == 0,
                  "widening of float16 " + std::to_string(half[i]));
    }
    for (int32_t nudge : {0, 1, 0xfff, 0x1000, 0x1001, 0x1fff}) {
      float nudged[8];
      for (int i = 0; i < 8; ++i) {
        uint32_t bits;
        std::memcpy(&bits, wide + i, sizeof(bits));
        bits += static_cast<uint32_t>(nudge);
        std::memcpy(nudged + i, &bits, sizeof(bits));
      }
      narrow_float16(nudged, 8, back);
      for (int i = 0; i < 8; ++i) {
        uint16_t one;
        narrow_float16(nudged + i, 1, &one);  // less than a vector: element-wise
        expect_that(one == back[i], "narrowing near float16 " + std::to_string(half[i]));
      }
    }
  }
  std::printf("float16 conversions compared\n");
}

bool load(const char* library) {
  std::string problem;
  void* handle = open_library(library, problem);
  if (!handle) {
    std::printf("WRONG %s\n", problem.c_str());
    return false;
  }
  const bool found = find_symbol(handle, "RegisterCustomOps") != nullptr;
  std::printf(found ? "loaded %s\n" : "WRONG %s exports no RegisterCustomOps\n", library);
  return found;
}

}  // namespace
}  // namespace fanin

int main(int argc, char** argv) {
  using namespace fanin;
  if (argc > 2) {
    std::fprintf(stderr, "usage: %s [libfanin_ort_ops.so]\n", argv[0]);
    return 2;
  }
  if (argc == 2 && !load(argv[1])) return 1;
  try {
    std::printf("supported");
    for (Isa isa : supported_isas()) std::printf(" %s", isa_name(isa));
    std::printf("\nselected %s\n", isa_name(select_isa()));
    for (ValueType values : {ValueType::kFloat32, ValueType::kFloat16, ValueType::kBfloat16})
      check_choices(values, ValueType::kFloat32);
    check_choices(ValueType::kBfloat16, ValueType::kBfloat16);
    check_float16();
    check_dynamic_quantization();
    check_each_kernel(kernel_table(), check_row);
    check_convolutions();
    check_quantized();
    check_quantized_convolutions();
  } catch (const std::exception& error) {
    std::printf("WRONG %s\n", error.what());
    return 1;
  }
  std::printf("%d wrong\n", failures);
  return failures == 0 ? 0 : 1;
}
