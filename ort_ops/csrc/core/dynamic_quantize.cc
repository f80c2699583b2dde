#include "core/dynamic_quantize.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "core/parallel.h"

namespace fanin {
namespace {

// Reading x twice and dividing each number once; 4 lanes, as on every x86-64 and Arm64 CPU.
constexpr double kMicrosecondsPerNumber = 1e-3;

// Rounds to the nearest even integer: from 2^23 on, float32 has no fraction.
float rounded(float value) {
  constexpr float kNoFraction = 0x1.8p23f;
  return (value + kNoFraction) - kNoFraction;
}

struct Range {
  float low = 0.0f;
  float high = 0.0f;
  bool finite = true;

  void include(const Range& other) {
    low = std::min(low, other.low);
    high = std::max(high, other.high);
    finite &= other.finite;
  }
};

Range range_of(const float* x, int64_t columns) {
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
  for (; i + kLanes <= columns; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) take(lane, x[i + lane]);
  for (; i < columns; ++i) take(0, x[i]);
  Range range;
  for (int64_t lane = 0; lane < kLanes; ++lane)
    range.include({low[lane], high[lane], odd[lane] == 0});
  return range;
}

struct Scale {
  float scale;  // finite and positive, also for x that is not
  float zero_point;
};

Scale scale_of(const Range& range) {
  if (!range.finite) return {1.0f, 0.0f};
  const float step = (range.high - range.low) / 255.0f;
  const float scale = step == 0.0f ? 1.0f : step;
  return {scale, rounded(std::clamp(-range.low / scale, 0.0f, 255.0f))};
}

void quantize_row(const float* x, int64_t columns, const Scale& by, uint8_t* to) {
  // Clamped before they are rounded, which changes no saturated sum and keeps NaN away.
  const float low = -by.zero_point, high = 255.0f - by.zero_point;
  for (int64_t i = 0; i < columns; ++i) {
    float value = x[i] / by.scale;
    value = value > low ? value : low;
    value = value < high ? value : high;
    to[i] = static_cast<uint8_t>(static_cast<int32_t>(rounded(value) + by.zero_point));
  }
}

}  // namespace

void dynamic_quantize(const float* x, int64_t rows, int64_t columns, bool per_row,
                      const DynamicQuantization& to, const Executor& executor) {
  const auto parts = static_cast<size_t>(rows);
  const double microseconds =
      static_cast<double>(rows) * static_cast<double>(columns) * kMicrosecondsPerNumber;
  const size_t chunks = chunk_count(executor, {microseconds, parts});
  // Calls body(chunk, first row, end).
  const auto each_chunk = [&](const auto& body) {
    auto chunk = [&](size_t c) {
      body(c, static_cast<int64_t>(chunk_begin(parts, chunks, c)),
           static_cast<int64_t>(chunk_begin(parts, chunks, c + 1)));
    };
    run_chunks(executor, chunks, chunk);
  };
  const auto apply = [&](int64_t row, const Range& range) {
    const Scale by = scale_of(range);
    quantize_row(x + row * columns, columns, by, to.values + row * columns);
    to.scales[row] = range.finite ? by.scale : std::numeric_limits<float>::quiet_NaN();
    to.zero_points[row] = static_cast<int32_t>(by.zero_point);
  };

  if (per_row) {
    each_chunk([&](size_t, int64_t row, int64_t end) {
      for (; row < end; ++row) apply(row, range_of(x + row * columns, columns));
    });
    return;
  }
  std::vector<Range> ranges(chunks);
  each_chunk([&](size_t chunk, int64_t row, int64_t end) {
    ranges[chunk] = range_of(x + row * columns, (end - row) * columns);
  });
  Range whole;
  for (const Range& range : ranges) whole.include(range);
  each_chunk([&](size_t, int64_t row, int64_t end) {
    for (; row < end; ++row) apply(row, whole);
  });
}

}  // namespace fanin
