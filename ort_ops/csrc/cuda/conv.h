// The condensed convolution on a GPU: packed once on the device, run on the caller's stream.
// Includes no CUDA header.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/condensed.h"
#include "core/conv_geometry.h"
#include "core/gate.h"
#include "cuda/gemm.h"

namespace fanin::cuda {

struct ConvEpilogue : Epilogue {  // the residual has y's shape
  Gate gate;                      // after the clip
};

class PackedConv {
 public:
  virtual ~PackedConv() = default;

  // Packs a valid view and geometry from host memory and copies them to `device`, or shares an
  // existing copy of the same content there. Synchronous. `activations` is the type of X, residual
  // and Y. Throws as PackedGemm::pack, and std::length_error for a layer beyond 32-bit counters.
  static std::unique_ptr<PackedConv> pack(const CondensedView& view, const ConvGeometry& geometry,
                                          ValueType activations, int device);

  // Y = gate(clip(convolution + bias + residual)) on `stream` (a cudaStream_t): only launches a
  // kernel. x is [batch, in_channels, height, width], y and the residual [batch, out_channels,
  // out_height, out_width], device memory, dense, aligned to their elements. The input must be
  // valid for the geometry. The current device must be the one packed for. `tf32`: whether float32
  // operands may be rounded to TF32. Throws std::length_error for images beyond a kernel's limits.
  virtual void run(const void* x, const ConvInput& input, void* y, const ConvEpilogue& epilogue,
                   void* stream, bool tf32) const = 0;

  virtual std::vector<PackedInfo> info() const = 0;
};

}  // namespace fanin::cuda
