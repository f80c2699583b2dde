// Running a kernel of float32 on float16 activations: x and residual are widened, sums and epilogue
// are float32, the result is rounded once. And on x that is rounded to bfloat16.
#pragma once

#include <cstdint>

#include "core/executor.h"

namespace fanin {

struct Float16Run {
  const uint16_t* x = nullptr;         // [batch, in_features]
  const uint16_t* residual = nullptr;  // [batch, out_features], or null for none
  uint16_t* y = nullptr;               // [batch, out_features]
  int64_t batch = 0;
  int64_t in_features = 0;
  int64_t out_features = 0;
};

// A part of the batch in float32.
struct Float32Slice {
  const float* x;
  const float* residual;  // null for none
  float* y;
  int64_t batch;
};

// Calls body(slice) for one slice of the batch after another. Slices depend on the sizes alone, so
// results do not depend on the number of threads. Throws std::bad_alloc.
void run_float16(const Float16Run& run, const Executor& executor,
                 void (*body)(const void* context, const Float32Slice& slice), const void* context);

template <typename Body>
void run_float16(const Float16Run& run, const Executor& executor, const Body& body) {
  run_float16(
      run, executor,
      [](const void* context, const Float32Slice& slice) {
        (*static_cast<const Body*>(context))(slice);
      },
      &body);
}

// Calls body(rounded, first, samples) for one slice of float32 x [batch, in_features] after
// another, rounded to bfloat16. Slices and exceptions are as above.
void run_rounded(const float* x, int64_t batch, int64_t in_features, const Executor& executor,
                 void (*body)(const void* context, const float* rounded, int64_t first,
                              int64_t samples),
                 const void* context);

template <typename Body>
void run_rounded(const float* x, int64_t batch, int64_t in_features, const Executor& executor,
                 const Body& body) {
  run_rounded(
      x, batch, in_features, executor,
      [](const void* context, const float* rounded, int64_t first, int64_t samples) {
        (*static_cast<const Body*>(context))(rounded, first, samples);
      },
      &body);
}

}  // namespace fanin
