#include <algorithm>
#include <limits>

#include "kernels/quantize_ops.h"

namespace fanin {
namespace {

QuantizeRange range(const float* x, int64_t count) {
  // Independent lanes, which compilers turn into vectors.
  constexpr int64_t kLanes = 16;
  constexpr float kLargest = std::numeric_limits<float>::max();
  float low[kLanes] = {}, high[kLanes] = {};
  int32_t odd[kLanes] = {};
  const auto take = [&](int64_t lane, float value) {
    low[lane] = value < low[lane] ? value : low[lane];
    high[lane] = value > high[lane] ? value : high[lane];
    odd[lane] |= !(value >= -kLargest && value <= kLargest);
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) take(lane, x[i + lane]);
  for (; i < count; ++i) take(0, x[i]);
  QuantizeRange all{0.0f, 0.0f, true};
  for (int64_t lane = 0; lane < kLanes; ++lane)
    all = {std::min(all.low, low[lane]), std::max(all.high, high[lane]),
           all.finite && odd[lane] == 0};
  return all;
}

void quantize(const float* x, int64_t count, const QuantizeScale& by, uint8_t* to) {
  // Clamped before they are rounded, which changes no saturated sum and keeps NaN away.
  const float low = -by.zero_point, high = 255.0f - by.zero_point;
  // Rounds to the nearest even integer: from 2^23 on, float32 has no fraction.
  constexpr float kNoFraction = 0x1.8p23f;
  for (int64_t i = 0; i < count; ++i) {
    float value = x[i] / by.scale;
    value = value > low ? value : low;
    value = value < high ? value : high;
    const float rounded = (value + kNoFraction) - kNoFraction;
    to[i] = static_cast<uint8_t>(static_cast<int32_t>(rounded + by.zero_point));
  }
}

}  // namespace

constexpr QuantizeOps kQuantizePlain = {range, quantize, 5e-4};

}  // namespace fanin
