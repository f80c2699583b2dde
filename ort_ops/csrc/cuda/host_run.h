// A run on host arrays, which are copied to the device and back. For tests; needs no library of
// device arrays, so that memory checkers run quickly.
#pragma once

#include <cstdint>

#include "cuda/conv.h"
#include "cuda/gemm.h"

namespace fanin::cuda {

struct HostArrays {
  const void* x = nullptr;  // [batch, in_features]
  int64_t x_bytes = 0;
  const void* residual = nullptr;  // the size of y, or null
  void* y = nullptr;               // its content is copied to the device before the run
  int64_t y_bytes = 0;
  int64_t batch = 0;
  int64_t shift = 0;  // bytes by which x, residual and y are past an aligned address
  float clip_min = 0;
  float clip_max = 0;
  Gate gate;  // of convolutions
  bool tf32 = false;
};

// Number of usable devices; 0 without a driver.
int device_count();

// Runs on the current device. Throws std::runtime_error, also for errors of the kernel itself.
void run_on_host_arrays(const PackedGemm& gemm, const HostArrays& arrays);

// The same for images of that size; ignores the batch of `arrays`.
void run_on_host_arrays(const PackedConv& conv, const ConvInput& input, const HostArrays& arrays);

}  // namespace fanin::cuda
