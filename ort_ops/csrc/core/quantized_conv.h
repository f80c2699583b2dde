// A condensed convolution of int8 weights, packed once and run many times with quantized images.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/condensed.h"
#include "core/conv_geometry.h"
#include "core/cpu_features.h"
#include "core/executor.h"
#include "core/gemm.h"
#include "core/quantized_gemm.h"
#include "core/work_plan.h"

namespace fanin {

// Why view and geometry are no valid convolution of int8 weights, as `validate` says it; empty if
// they are one.
std::string validate_quantized(const CondensedView& view, const ConvGeometry& geometry);

// Images, all with one zero point, which is also what the pads hold.
struct QuantizedImages {
  const void* data = nullptr;  // [batch, in_channels, height, width], or the channels last
  QuantizedType type = QuantizedType::kUint8;  // or kInt8
  int32_t zero_point = 0;                      // a value of the type
  ConvInput size;
  bool channels_last = false;  // of y and the residual as well
};

class PackedQuantizedConv {
 public:
  virtual ~PackedQuantizedConv() = default;

  // As PackedConv::pack, for what validate_quantized accepts. Scales, zero points and biases come
  // with each run, so layers that differ only in these share packed copies.
  static std::unique_ptr<PackedQuantizedConv> pack(const CondensedView& view,
                                                   const ConvGeometry& geometry, Isa isa,
                                                   const Executor& executor);

  // As PackedConv::pack_kernel, with a row of quantized_conv_kernel_table().
  static std::unique_ptr<PackedQuantizedConv> pack_kernel(const CondensedView& view,
                                                          const ConvGeometry& geometry,
                                                          const std::string& kernel,
                                                          const Executor& executor);

  // y has epilogue.type and, pixel by pixel, the values that QuantizedEpilogue describes, where a
  // sample is an output pixel of an image; sample_multipliers must be null. Arrays are dense and
  // without alignment, and y does not overlap x. It may be the residual. x must be valid for the
  // geometry (see validate). The result is bitwise equal for any kernel and any number of threads.
  virtual void run(const QuantizedImages& x, void* y, const QuantizedEpilogue& epilogue,
                   const Executor& executor) const = 0;

  // How run() shares an input of this size (at least one image) among `threads` threads.
  virtual WorkPlan plan(const ConvInput& input, size_t threads,
                        const DispatchCost& dispatch) const = 0;

  virtual std::vector<PackedInfo> info() const = 0;

  // Whether packing `view` with `geometry` would give this object, see LayerKernel::holds.
  virtual bool holds(const CondensedView& view, const ConvGeometry& geometry) const = 0;
};

// The scalar reference, without packing, as run_plain_conv.
void run_plain_quantized_conv(const CondensedView& view, const ConvGeometry& geometry,
                              const QuantizedImages& x, void* y, const QuantizedEpilogue& epilogue);

}  // namespace fanin
