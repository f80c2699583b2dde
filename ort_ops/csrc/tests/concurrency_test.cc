// Packing, sharing and running from many threads at once, and while the process exits. Built with
// -fsanitize=thread it finds races; any build checks that results are bitwise equal for any number
// of threads.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/conv.h"
#include "core/float16_run.h"
#include "core/gemm.h"
#include "core/packed_cache.h"
#include "core/quantized_conv.h"
#include "core/quantized_gemm.h"
#include "core/thread_executor.h"
#include "core/work_plan.h"
#include "kernels/conv_dispatch.h"
#include "kernels/depthwise_conv.h"
#include "kernels/dispatch.h"
#include "kernels/quantized_conv_dispatch.h"
#include "kernels/quantized_dispatch.h"
#include "tests/shared_pool.h"
#include "tests/test_layer.h"

namespace fanin {
namespace {

constexpr size_t kCallers = 6;

std::atomic<int> failures{0};

void check(bool condition, const std::string& what) {
  if (condition) return;
  ++failures;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
}

// Calls body(caller) on kCallers threads that start at the same moment.
void from_many_threads(const std::function<void(size_t)>& body) {
  std::atomic<bool> go{false};
  std::vector<std::thread> threads;
  for (size_t caller = 0; caller < kCallers; ++caller)
    threads.emplace_back([&, caller] {
      while (!go) std::this_thread::yield();
      body(caller);
    });
  go = true;
  for (std::thread& thread : threads) thread.join();
}

// Must be the first test: the table, the CPU's features and the cache are initialized at first use.
void test_first_use(const TestLayer& layer) {
  std::atomic<int> packed{0};
  from_many_threads([&](size_t) {
    packed += PackedGemm::pack(layer.view, {}, select_isa(), InlineExecutor())->holds(layer.view);
  });
  check(packed == kCallers, "every caller has the layer that it packed");
}

// The kernels of the table that this CPU can run on the layer.
std::vector<std::string> kernels_for(const CondensedView& view) {
  std::vector<std::string> names;
  for (const KernelRow& row : kernel_table()) {
    const bool takes = row.weights == ValueType::kFloat32 || row.weights == view.value_type;
    const bool computes = row.compute == ValueType::kFloat32 || row.compute == view.compute;
    if (is_supported(row.isa) && takes && computes) names.push_back(row.name);
  }
  return names;
}

// One packed layer, run by many threads on one pool, and on pools of other sizes.
void test_runs(const TestLayer& layer, const std::string& kernel) {
  const SharedPool pool(3);
  const auto gemm = PackedGemm::pack_kernel(layer.view, {}, kernel, pool);
  Numbers numbers(1);
  for (const int64_t batch : {1, 4, 35}) {
    const size_t samples = static_cast<size_t>(batch);
    const std::vector<float> x = numbers.reals(samples * layer.view.in_features);
    const std::vector<float> residual = numbers.reals(samples * layer.view.out_features);
    const Epilogue epilogue{residual.data(), -2.0f, 2.5f};
    const std::vector<float> want = run(*gemm, layer.view, x, epilogue, InlineExecutor());
    const std::string what = kernel + ", batch " + std::to_string(batch);
    for (size_t threads : {2, 5}) {
      const SharedPool other(threads);
      check(same_bits(run(*gemm, layer.view, x, epilogue, other), want), what + ", other pool");
    }
    from_many_threads([&](size_t) {
      check(same_bits(run(*gemm, layer.view, x, epilogue, pool), want), what + ", one pool");
    });
  }
}

// A pool with fewer threads than declared, such as that of a session without fanin.threads.
class SmallerPool final : public Executor {
 public:
  SmallerPool(size_t said, size_t threads) : said_(said), pool_(threads) {}

  size_t concurrency() const override { return said_; }
  void run(size_t chunks, void (*body)(void*, size_t) noexcept, void* context) const override {
    pool_.run(chunks, body, context);
  }

 private:
  size_t said_;
  SharedPool pool_;
};

// Tiles that are cut for many threads share their panels, whichever thread fills them: the parts of
// all 64 threads run on one thread, or on a few.
void test_many_threads(const TestLayer& layer) {
  Numbers numbers(12);
  for (const size_t threads : {16, 64}) {
    const auto gemm = PackedGemm::pack(layer.view, {8}, select_isa(), SmallerPool(threads, 1));
    for (const int64_t batch : {8, 33, 300}) {
      const std::vector<float> x =
          numbers.reals(static_cast<size_t>(batch * layer.view.in_features));
      const std::vector<float> want = run(*gemm, layer.view, x, {}, InlineExecutor());
      const std::string what = std::to_string(threads) + " threads, batch " + std::to_string(batch);
      for (const size_t used : {1, 2, 5}) {
        const SmallerPool pool(threads, used);
        check(same_bits(run(*gemm, layer.view, x, {}, pool), want), what);
      }
      const SmallerPool pool(threads, 4);
      from_many_threads([&](size_t) {
        check(same_bits(run(*gemm, layer.view, x, {}, pool), want), what + ", many callers");
      });
    }
  }
}

// Layers packed, shared and freed at the same time: the first caller packs, the last owner frees.
void test_sharing(const std::vector<std::unique_ptr<TestLayer>>& layers) {
  const SharedPool pool(3);
  Numbers numbers(2);
  std::vector<std::vector<float>> inputs, wanted;
  for (const auto& layer : layers) {
    inputs.push_back(numbers.reals(3 * layer->view.in_features));
    const auto gemm = PackedGemm::pack(layer->view, {}, select_isa(), InlineExecutor());
    wanted.push_back(run(*gemm, layer->view, inputs.back(), {}, InlineExecutor()));
  }
  std::atomic<size_t> shared{0}, packed{0};
  from_many_threads([&](size_t caller) {
    for (size_t round = 0; round < 12; ++round) {
      const size_t i = (caller / 2 + round) % layers.size();
      const CondensedView& view = layers[i]->view;
      const ThreadExecutor own(2);
      const Executor& executor = round % 2 ? static_cast<const Executor&>(own) : pool;
      const auto gemm = PackedGemm::pack(view, {}, select_isa(), executor);
      for (const PackedInfo& info : gemm->info()) ++(info.shared ? shared : packed);
      check(gemm->holds(view), "a shared layer holds its weights");
      check(same_bits(run(*gemm, view, inputs[i], {}, pool), wanted[i]), "a shared layer's sums");
    }
  });
  check(shared > 0 && packed > 0, "layers were shared, and freed and packed again");
}

// A packed copy outlives the owner that packed it, while other owners are created and destroyed.
void test_last_owner_frees(const TestLayer& layer) {
  std::vector<std::shared_ptr<const GemmKernel>> held(kCallers);
  const KernelRow& row = find_kernel("f32-gemm-rows-scalar", layer.view);
  const uint64_t hash = content_hash(layer.view);
  for (int round = 0; round < 20; ++round) {
    from_many_threads([&](size_t caller) {
      held[caller] = packed_kernel(row, layer.view, hash, InlineExecutor()).kernel;
    });
    for (size_t caller = 1; caller < kCallers; ++caller)
      check(held[caller] == held[0], "threads that ask at the same time share one copy");
    from_many_threads([&](size_t caller) { held[caller].reset(); });
  }
}

// A server's sizes are products of a batch and a length, so mostly multiples of powers of two.
void test_plans_are_kept() {
  const PlanCache plans;
  std::atomic<int> made{0};
  const auto find_all = [&](size_t) {
    for (int64_t step : {1, 8, 512, 4096}) {
      for (int64_t i = 1; i <= 64; ++i) {
        WorkPlan spare;
        const WorkPlan& plan = plans.find({i * step, 4, {}}, spare, [&] {
          made++;
          WorkPlan own;
          own.microseconds = static_cast<double>(i * step);
          return own;
        });
        check(plan.microseconds == static_cast<double>(i * step), "a plan is that of its size");
      }
    }
  };
  from_many_threads(find_all);
  made = 0;
  from_many_threads(find_all);
  check(made == 0, "plans of many sizes are kept");
}

// float16 activations use scratch memory of the calling thread.
void test_float16_runs(const TestLayer& layer) {
  const SharedPool pool(3);
  const CondensedView& view = layer.view;
  const auto gemm = PackedGemm::pack(view, {}, select_isa(), pool);
  constexpr int64_t kBatch = 9;
  Numbers numbers(3);
  std::vector<uint16_t> x(static_cast<size_t>(kBatch * view.in_features));
  for (uint16_t& bits : x) bits = static_cast<uint16_t>(numbers.below(0x3c00));
  auto run_on = [&](const Executor& executor) {
    std::vector<uint16_t> y(static_cast<size_t>(kBatch * view.out_features));
    run_float16({x.data(), nullptr, y.data(), kBatch, view.in_features, view.out_features},
                executor, [&](const Float32Slice& slice) {
                  gemm->run(slice.x, slice.batch, slice.y, Epilogue{slice.residual}, executor);
                });
    return y;
  };
  const std::vector<uint16_t> want = run_on(InlineExecutor());
  from_many_threads([&](size_t) { check(run_on(pool) == want, "float16 results"); });
}

// A convolution that is packed and shared by many threads, which run it on one pool.
void test_convolution(const TestLayer& layer, const ConvGeometry& geometry,
                      const std::string& kernel) {
  const ConvInput input{2, 7, 9};
  Numbers numbers(6);
  const std::vector<float> x = numbers.reals(static_cast<size_t>(2 * geometry.in_channels * 7 * 9));
  const size_t outputs = static_cast<size_t>(2 * geometry.out_channels * 6 * 8);
  const std::vector<float> residual = numbers.reals(outputs);
  const SharedPool pool(3);
  const auto run_on = [&](const PackedConv& conv, const Executor& executor) {
    std::vector<float> y(outputs);
    conv.run(x.data(), input, y.data(), {{residual.data(), -2.0f, 2.5f}, {}}, executor);
    return y;
  };
  const auto first = PackedConv::pack_kernel(layer.view, geometry, kernel, pool);
  const std::vector<float> want = run_on(*first, InlineExecutor());
  from_many_threads([&](size_t) {
    const auto conv = PackedConv::pack_kernel(layer.view, geometry, kernel, pool);
    check(conv->info().front().shared, kernel + ": is shared");
    check(same_bits(run_on(*conv, pool), want), kernel + ": results on a pool");
  });
}

void test_convolutions(const TestLayer& layer) {
  ConvGeometry sparse;  // layer: 700 columns
  sparse.in_channels = 175;
  sparse.out_channels = layer.view.out_features;
  sparse.kernel[0] = sparse.kernel[1] = 2;
  ConvGeometry depthwise = sparse;
  depthwise.out_channels = depthwise.group = depthwise.in_channels;
  const TestLayer whole(4, 175, 4, ValueType::kFloat32, 9, false);
  std::set<std::string> seen;  // a kernel may have two rows
  for (const ConvKernelRow& row : conv_kernel_table()) {
    if (!is_supported(row.isa) || !seen.insert(row.name).second) continue;
    if (row.fits == is_whole_depthwise)
      test_convolution(whole, depthwise, row.name);
    else
      test_convolution(layer, sparse, row.name);
  }
}

// Otherwise, the tests above could pass with everything on one thread.
void test_pool_takes_part(const TestLayer& layer) {
  const SharedPool pool(3);
  const auto gemm = PackedGemm::pack(layer.view, {}, select_isa(), pool);
  const std::vector<float> x = Numbers(4).reals(64 * layer.view.in_features);
  for (int attempt = 0; attempt < 1000 && pool.runs_by_workers() == 0; ++attempt)
    run(*gemm, layer.view, x, {}, pool);
  check(pool.runs_by_workers() > 0, "the pool's threads take part in a run");
}

std::vector<int8_t> random_bytes(size_t count, Numbers& numbers) {
  std::vector<int8_t> result(count);
  for (int8_t& byte : result) byte = static_cast<int8_t>(numbers.below(256));
  return result;
}

// A layer of int8 weights with the places of another one.
struct QuantizedTestLayer {
  QuantizedTestLayer(const TestLayer& layer, Numbers& numbers)
      : values(random_bytes(layer.indices.size(), numbers)),
        multipliers(static_cast<size_t>(layer.view.out_features), 1e-3f),
        view(layer.view) {
    view.value_type = ValueType::kInt8;
    view.values = values.data();
    view.bias = nullptr;
    epilogue.type = QuantizedType::kUint8;
    epilogue.multipliers = multipliers.data();
    epilogue.zero_point = 128;
  }

  std::vector<int8_t> values;
  std::vector<float> multipliers;
  CondensedView view;
  QuantizedEpilogue epilogue;
};

// Checks that run(executor) gives the same on many threads.
template <typename Run>
void test_quantized_run(const Run& run, const Executor& pool, const std::string& what) {
  const std::vector<uint8_t> want = run(InlineExecutor());
  from_many_threads([&](size_t) {
    check(run(pool) == want, what);
    check(run(SmallerPool(16, 2)) == want, what + ", fewer threads than declared");
  });
}

// Threads copy signed x for their own parts.
void test_quantized(const TestLayer& layer) {
  Numbers numbers(13);
  const QuantizedTestLayer quantized(layer, numbers);
  const CondensedView& view = quantized.view;
  for (const QuantizedKernelRow& row : quantized_kernel_table()) {
    if (!is_supported(row.isa)) continue;
    const SharedPool pool(3);
    const auto gemm = PackedQuantizedGemm::pack_kernel(view, {}, row.name, pool);
    for (const int64_t batch : {1, 35, 200}) {
      const std::vector<int8_t> x =
          random_bytes(static_cast<size_t>(batch * view.in_features), numbers);
      const auto run = [&](const Executor& executor) {
        std::vector<uint8_t> y(static_cast<size_t>(batch * view.out_features));
        gemm->run({x.data(), QuantizedType::kInt8, 5}, batch, y.data(), quantized.epilogue,
                  executor);
        return y;
      };
      test_quantized_run(run, pool, row.name + ", batch " + std::to_string(batch));
    }
  }
}

// Threads copy, and transpose, the part of the images that they read.
void test_quantized_convolutions(const TestLayer& layer) {
  Numbers numbers(14);
  const QuantizedTestLayer quantized(layer, numbers);
  ConvGeometry geometry;  // layer: 700 columns
  geometry.in_channels = 175;
  geometry.out_channels = layer.view.out_features;
  geometry.kernel[0] = geometry.kernel[1] = 2;
  geometry.pads[0] = geometry.pads[3] = 1;
  QuantizedImages images;
  images.type = QuantizedType::kInt8;
  images.zero_point = 5;
  images.size = {2, 13, 17};
  const std::vector<int8_t> x = random_bytes(2 * 175 * 13 * 17, numbers);
  images.data = x.data();
  for (const QuantizedConvKernelRow& row : quantized_conv_kernel_table()) {
    if (!is_supported(row.isa)) continue;
    const SharedPool pool(3);
    const auto conv = PackedQuantizedConv::pack_kernel(quantized.view, geometry, row.name, pool);
    for (const bool last : {true, false}) {
      images.channels_last = last;
      const auto run = [&](const Executor& executor) {
        std::vector<uint8_t> y(static_cast<size_t>(2 * geometry.out_channels * 13 * 17));
        conv->run(images, y.data(), quantized.epilogue, executor);
        return y;
      };
      test_quantized_run(run, pool, row.name + (last ? ", channels last" : ", channels first"));
    }
  }
}

// A static object of the program may still own a session. Constructed before all objects of the
// library, it is destroyed after them and after the main thread's thread-local objects.
class LastSession {
 public:
  void open() { want_ = run_once(); }

  ~LastSession() {
    if (want_.empty() || same_bits(run_once(), want_)) return;
    std::fprintf(stderr, "FAILED: a run while the process exits\n");
    std::_Exit(1);
  }

 private:
  std::vector<float> run_once() const {
    const auto gemm = PackedGemm::pack(layer_.view, {}, select_isa(), InlineExecutor());
    check(gemm->info().front().kernel.rfind("f32-", 0) == 0, "the names of the table stand");
    return run(*gemm, layer_.view, Numbers(7).reals(3 * layer_.view.in_features), {},
               InlineExecutor());
  }

  const TestLayer layer_{300, 200, 30, ValueType::kFloat32, 11};
  std::vector<float> want_;
};

int run_tests() {
  static LastSession last;
  std::vector<std::unique_ptr<TestLayer>> layers;
  for (ValueType type : {ValueType::kFloat32, ValueType::kFloat16, ValueType::kBfloat16})
    layers.push_back(
        std::make_unique<TestLayer>(700, 1800, 70, type, 5 + static_cast<uint64_t>(type)));
  test_first_use(*layers[0]);
  test_pool_takes_part(*layers[0]);
  for (const auto& layer : layers)
    for (const std::string& kernel : kernels_for(layer->view)) test_runs(*layer, kernel);
  TestLayer in_bfloat16(700, 1800, 70, ValueType::kBfloat16, 9);
  in_bfloat16.view.compute = ValueType::kBfloat16;
  for (const std::string& kernel : kernels_for(in_bfloat16.view)) test_runs(in_bfloat16, kernel);
  test_many_threads(*layers[0]);
  test_sharing(layers);
  test_last_owner_frees(*layers[0]);
  for (const auto& layer : layers) test_float16_runs(*layer);
  test_convolutions(*layers[0]);
  test_quantized(*layers[0]);
  test_quantized_convolutions(*layers[0]);
  test_plans_are_kept();
  last.open();
  std::printf("concurrency test: %d failures\n", failures.load());
  return failures != 0;
}

}  // namespace
}  // namespace fanin

int main() { return fanin::run_tests(); }
