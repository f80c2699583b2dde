// The condensed layer on a GPU: packed once on the device, run on the caller's stream. Includes no
// CUDA header, so that callers compile without the toolkit.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "core/condensed.h"
#include "core/gemm.h"

namespace fanin::cuda {

struct Epilogue {
  const void* residual = nullptr;  // device, [batch, out_features] of the activations' type
  float clip_min = -std::numeric_limits<float>::infinity();
  float clip_max = std::numeric_limits<float>::infinity();
};

class PackedGemm {
 public:
  virtual ~PackedGemm() = default;

  // Packs a valid view from host memory for every kernel that `batches` needs and copies it to
  // `device`, or shares an existing copy of the same content there. Synchronous. `activations` is
  // the type of X, residual and Y. Throws std::bad_alloc if device memory is insufficient (the
  // message names the bytes), std::runtime_error for any other error of the CUDA runtime.
  static std::unique_ptr<PackedGemm> pack(const CondensedView& view, BatchRange batches,
                                          ValueType activations, int device);

  // y[b, o] = clip(bias[o] + sum + residual[b, o]) on `stream` (a cudaStream_t): only launches
  // kernels, without allocation or synchronization, so a CUDA graph can capture it. x is
  // [batch, in_features] and y [batch, out_features], device memory, dense, aligned to their
  // elements. The current device must be the one packed for. `tf32`: whether float32 operands may
  // be rounded to TF32.
  virtual void run(const void* x, int64_t batch, void* y, const Epilogue& epilogue, void* stream,
                   bool tf32) const = 0;

  virtual std::vector<PackedInfo> info() const = 0;
};

}  // namespace fanin::cuda
