#include "core/dynamic_quantize.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "core/parallel.h"
#include "kernels/quantize_ops.h"

namespace fanin {
namespace {

// Chunks begin at multiples of so many numbers, so that no two threads write to the same line.
constexpr int64_t kLineNumbers = 64;

const QuantizeOps& quantize_ops(Isa isa) {
#if defined(__x86_64__)
  if (includes(isa, Isa::kAvx512bw)) return kQuantizeAvx512bw;
  if (includes(isa, Isa::kAvx2)) return kQuantizeAvx2;
#elif defined(__aarch64__)
  if (includes(isa, Isa::kNeon)) return kQuantizeNeon;
#endif
  static_cast<void>(isa);
  return kQuantizePlain;
}

// Rounds to the nearest even integer: from 2^23 on, float32 has no fraction.
float rounded(float value) {
  constexpr float kNoFraction = 0x1.8p23f;
  return (value + kNoFraction) - kNoFraction;
}

// A scale that is finite and positive, also for numbers that are not.
QuantizeScale scale_of(const QuantizeRange& range) {
  if (!range.finite) return {1.0f, 0.0f};
  const float step = (range.high - range.low) / 255.0f;
  const float scale = step == 0.0f ? 1.0f : step;
  return {scale, rounded(std::clamp(-range.low / scale, 0.0f, 255.0f))};
}

void quantize(const QuantizeOps& ops, const float* x, int64_t count, const QuantizeRange& range,
              uint8_t* to) {
  (range.finite ? ops : kQuantizePlain).quantize(x, count, scale_of(range), to);
}

void set_scale(const QuantizeRange& range, const DynamicQuantization& to, int64_t row) {
  const QuantizeScale by = scale_of(range);
  to.scales[row] = range.finite ? by.scale : std::numeric_limits<float>::quiet_NaN();
  to.zero_points[row] = static_cast<int32_t>(by.zero_point);
}

// Calls body(chunk, first, end) for chunks of the parts, on the executor's threads; chunk_count
// says how many there are.
template <typename Body>
void for_chunks(const Executor& executor, size_t parts, size_t chunks, const Body& body) {
  auto chunk = [&](size_t c) {
    body(c, static_cast<int64_t>(chunk_begin(parts, chunks, c)),
         static_cast<int64_t>(chunk_begin(parts, chunks, c + 1)));
  };
  run_chunks(executor, chunks, chunk);
}

}  // namespace

void dynamic_quantize(const float* x, int64_t rows, int64_t columns, bool per_row,
                      const DynamicQuantization& to, Isa isa, const Executor& executor) {
  const QuantizeOps& ops = quantize_ops(isa);
  const int64_t count = rows * columns;
  const double microseconds = static_cast<double>(count) * ops.microseconds_per_number;
  if (per_row) {
    const auto parts = static_cast<size_t>(rows);
    for_chunks(executor, parts, chunk_count(executor, {2 * microseconds, parts}),
               [&](size_t, int64_t row, int64_t end) {
                 for (; row < end; ++row) {
                   const float* from = x + row * columns;
                   const QuantizeRange range = ops.range(from, columns);
                   quantize(ops, from, columns, range, to.values + row * columns);
                   set_scale(range, to, row);
                 }
               });
    return;
  }
  const auto lines = static_cast<size_t>((count + kLineNumbers - 1) / kLineNumbers);
  const size_t chunks = chunk_count(executor, {microseconds, lines});
  // Calls body(chunk, first number, count).
  const auto for_numbers = [&](const auto& body) {
    for_chunks(executor, lines, chunks, [&](size_t chunk, int64_t line, int64_t end) {
      const int64_t first = line * kLineNumbers;
      body(chunk, first, std::min(end * kLineNumbers, count) - first);
    });
  };
  std::vector<QuantizeRange> ranges(chunks);
  for_numbers([&](size_t chunk, int64_t first, int64_t numbers) {
    ranges[chunk] = ops.range(x + first, numbers);
  });
  QuantizeRange whole{0.0f, 0.0f, true};
  for (const QuantizeRange& range : ranges)
    whole = {std::min(whole.low, range.low), std::max(whole.high, range.high),
             whole.finite && range.finite};
  for_numbers([&](size_t, int64_t first, int64_t numbers) {
    quantize(ops, x + first, numbers, whole, to.values + first);
  });
  for (int64_t row = 0; row < rows; ++row) set_scale(whole, to, row);
}

}  // namespace fanin
