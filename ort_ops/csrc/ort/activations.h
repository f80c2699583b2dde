// The tensors that a run of an op reads and writes.
#pragma once

#include <cstdint>

#include "core/executor.h"
#include "core/float16_run.h"
#include "ort/condensed_op.h"

namespace fanin::ort {

// Dense arrays.
struct Activations {
  const void* x;
  const void* residual;  // of Y's type; null for none
  void* y;
  ActivationTypes types;
};

// Calls run(slice) on float32 arrays: once, or slice by slice if X and Y are float16.
// `inputs` and `outputs` are the elements of one sample of X and Y.
template <typename Run>
void run_in_float32(const Activations& arrays, int64_t batch, int64_t inputs, int64_t outputs,
                    const Executor& executor, const Run& run) {
  if (arrays.types.x == kFloat16) {
    run_float16(
        {static_cast<const uint16_t*>(arrays.x), static_cast<const uint16_t*>(arrays.residual),
         static_cast<uint16_t*>(arrays.y), batch, inputs, outputs},
        executor, run);
  } else {
    run({static_cast<const float*>(arrays.x), static_cast<const float*>(arrays.residual),
         static_cast<float*>(arrays.y), batch});
  }
}

}  // namespace fanin::ort
