// Artificial layers, inputs and comparisons for the C++ tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "core/condensed.h"
#include "core/gemm.h"

namespace fanin {

// Pseudo-random numbers, the same on every platform.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed * 2 + 1) {}

  uint32_t below(uint32_t limit) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>((state_ >> 32) * limit >> 32);
  }

  float real() { return static_cast<float>(below(2001)) / 1000.0f - 1.0f; }

  std::vector<float> reals(size_t count) {
    std::vector<float> result(count);
    for (float& value : result) value = real();
    return result;
  }

 private:
  uint64_t state_;
};

// A layer in which every seventh output, or none, is ablated.
struct TestLayer {
  TestLayer(int64_t in, int64_t out, int64_t fan_in, ValueType type, uint64_t seed,
            bool ablated = true) {
    Numbers numbers(seed);
    bias = numbers.reals(static_cast<size_t>(out));
    for (int32_t o = 0; o < out; ++o) {
      if (ablated && o % 7 == 6) continue;
      rows.push_back(o);
      for (int64_t j = 0; j < fan_in; ++j) {
        // One column in each of fan_in equal ranges.
        const int64_t low = j * in / fan_in, high = (j + 1) * in / fan_in;
        indices.push_back(
            static_cast<uint16_t>(low + numbers.below(static_cast<uint32_t>(high - low))));
      }
    }
    if (type == ValueType::kFloat32) {
      values = numbers.reals(indices.size());
    } else {
      // All bit patterns below 0x3c00 are finite, in float16 and in bfloat16.
      for (size_t i = 0; i < indices.size(); ++i)
        halves.push_back(static_cast<uint16_t>(numbers.below(0x3c00)));
    }
    view.in_features = in;
    view.out_features = out;
    view.active = static_cast<int64_t>(rows.size());
    view.fan_in = fan_in;
    view.values = type == ValueType::kFloat32 ? static_cast<const void*>(values.data())
                                              : static_cast<const void*>(halves.data());
    view.value_type = type;
    view.indices = indices.data();
    view.index_type = IndexType::kUint16;
    view.rows = rows.data();
    view.bias = bias.data();
  }
  TestLayer(const TestLayer&) = delete;

  std::vector<float> bias, values;
  std::vector<uint16_t> halves, indices;
  std::vector<int32_t> rows;
  CondensedView view;
};

inline std::vector<float> run(const PackedGemm& gemm, const CondensedView& view,
                              const std::vector<float>& x, const Epilogue& epilogue,
                              const Executor& executor) {
  const int64_t batch = static_cast<int64_t>(x.size()) / view.in_features;
  std::vector<float> y(static_cast<size_t>(batch * view.out_features), -1e30f);
  gemm.run(x.data(), batch, y.data(), epilogue, executor);
  return y;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace fanin
