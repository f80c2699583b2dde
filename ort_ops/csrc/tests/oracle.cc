#include "tests/oracle.h"

#include <cmath>
#include <limits>

namespace fanin {

Expected expect(const CondensedView& view, const float* x, int64_t batch,
                const Epilogue& epilogue) {
  Expected expected;
  const double eps = std::numeric_limits<float>::epsilon();
  for (int64_t b = 0; b < batch; ++b) {
    int64_t stored = 0;
    for (int64_t o = 0; o < view.out_features; ++o) {
      double sum = view.bias[o], magnitude = std::abs(sum);
      const auto add = [&](double term) {
        sum += term;
        magnitude += std::abs(term);
      };
      int64_t entries = 0;
      if (stored < view.active && view.rows[stored] == o) {
        entries = view.true_fan_in(stored);
        for (int64_t j = 0; j < entries; ++j) {
          const float read = x[b * view.in_features + view.index(stored, j)];
          const bool rounds = view.compute == ValueType::kBfloat16;
          add(static_cast<double>(view.value(stored, j)) *
              static_cast<double>(rounds ? round_bfloat16(read) : read));
        }
        ++stored;
      }
      if (epilogue.residual) add(epilogue.residual[b * view.out_features + o]);
      // NaN stays NaN: both comparisons are false.
      if (sum < epilogue.clip_min) sum = epilogue.clip_min;
      if (sum > epilogue.clip_max) sum = epilogue.clip_max;
      expected.y.push_back(sum);
      expected.bound.push_back(static_cast<double>(entries + 2) * eps * magnitude);
    }
  }
  return expected;
}

std::string difference(const Expected& expected, const float* y, int64_t out_features) {
  for (size_t i = 0; i < expected.y.size(); ++i) {
    const double want = expected.y[i], got = y[i];
    // Beyond a clip, an infinite sum is finite and exact.
    const bool same = std::isnan(want)                   ? std::isnan(got)
                      : std::isfinite(expected.bound[i]) ? std::abs(got - want) <= expected.bound[i]
                                                         : got == want;
    if (!same)
      return "y[" + std::to_string(i / out_features) + ", " + std::to_string(i % out_features) +
             "] is " + std::to_string(got) + " and not " + std::to_string(want);
  }
  return "";
}

}  // namespace fanin
