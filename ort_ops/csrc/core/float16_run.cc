#include "core/float16_run.h"

#include <algorithm>

#include "core/parallel.h"
#include "core/scratch.h"
#include "core/value_type.h"

namespace fanin {
namespace {

// Bytes of a slice's float32 copies, approximately; the samples of a slice are a multiple of every
// kernel's tile, so that slices add no incomplete tiles.
constexpr int64_t kSliceBytes = 8 * 1024 * 1024;
constexpr int64_t kSliceSamples = 64;

constexpr double kMicrosecondsPerValue = 0.0003;

// Samples of a slice, of which `floats` numbers each are copied.
int64_t slice_batch(int64_t batch, int64_t floats) {
  const int64_t sample_bytes = floats * static_cast<int64_t>(sizeof(float));
  const int64_t samples = std::max<int64_t>(1, kSliceBytes / sample_bytes);
  const int64_t whole = samples < kSliceSamples ? samples : samples / kSliceSamples * kSliceSamples;
  return std::min(batch, whole);
}

// Calls convert(first, count) over an array, on the executor's threads if that pays off.
template <typename Convert>
void convert_array(int64_t count, const Executor& executor, const Convert& convert) {
  const size_t lines = static_cast<size_t>((count + 31) / 32);
  const size_t chunks =
      chunk_count(executor, {static_cast<double>(count) * kMicrosecondsPerValue, lines});
  auto body = [&](size_t chunk) {
    const int64_t first = static_cast<int64_t>(chunk_begin(lines, chunks, chunk)) * 32;
    const int64_t end = static_cast<int64_t>(chunk_begin(lines, chunks, chunk + 1)) * 32;
    convert(first, std::min(end, count) - first);
  };
  run_chunks(executor, chunks, body);
}

void widen(const uint16_t* from, int64_t count, float* to, const Executor& executor) {
  convert_array(count, executor, [&](int64_t first, int64_t part) {
    widen_float16(from + first, part, to + first);
  });
}

}  // namespace

void run_float16(const Float16Run& run, const Executor& executor,
                 void (*body)(const void* context, const Float32Slice& slice),
                 const void* context) {
  if (run.batch < 1) return;
  const int64_t most = slice_batch(run.batch, run.in_features + 2 * run.out_features);
  const size_t inputs = static_cast<size_t>(most * run.in_features);
  const size_t outputs = static_cast<size_t>(most * run.out_features);
  ScratchPlan plan;
  const size_t x_at = plan.add(inputs * sizeof(float));
  const size_t y_at = plan.add(outputs * sizeof(float));
  const size_t residual_at = plan.add(run.residual ? outputs * sizeof(float) : 0);
  // The kernels' scratch is in use at the same time.
  uint8_t* scratch = thread_scratch(plan.total(), ScratchUse::kActivations);
  float* x = reinterpret_cast<float*>(scratch + x_at);
  float* y = reinterpret_cast<float*>(scratch + y_at);
  float* residual = run.residual ? reinterpret_cast<float*>(scratch + residual_at) : nullptr;
  for (int64_t first = 0; first < run.batch; first += most) {
    const int64_t batch = std::min(most, run.batch - first);
    widen(run.x + first * run.in_features, batch * run.in_features, x, executor);
    if (residual)
      widen(run.residual + first * run.out_features, batch * run.out_features, residual, executor);
    body(context, {x, residual, y, batch});
    uint16_t* to = run.y + first * run.out_features;
    convert_array(batch * run.out_features, executor,
                  [&](int64_t from, int64_t part) { narrow_float16(y + from, part, to + from); });
  }
}

void run_rounded(const float* x, int64_t batch, int64_t in_features, const Executor& executor,
                 void (*body)(const void* context, const float* rounded, int64_t first,
                              int64_t samples),
                 const void* context) {
  if (batch < 1) return;
  const int64_t most = slice_batch(batch, in_features);
  const size_t bytes = static_cast<size_t>(most * in_features) * sizeof(float);
  auto* rounded = reinterpret_cast<float*>(thread_scratch(bytes, ScratchUse::kRounded));
  for (int64_t first = 0; first < batch; first += most) {
    const int64_t samples = std::min(most, batch - first);
    const float* from = x + first * in_features;
    convert_array(samples * in_features, executor,
                  [&](int64_t at, int64_t part) { round_bfloat16(from + at, part, rounded + at); });
    body(context, rounded, first, samples);
  }
}

}  // namespace fanin
