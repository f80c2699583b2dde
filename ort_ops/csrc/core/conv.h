// A condensed convolution, packed once and run many times, for the ops and the binding.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/condensed.h"
#include "core/conv_geometry.h"
#include "core/cpu_features.h"
#include "core/executor.h"
#include "core/gate.h"
#include "core/gemm.h"

namespace fanin {

struct ConvEpilogue : Epilogue {  // the residual has y's shape, and may be y itself
  Gate gate;                      // after the clip

  float apply(float value) const {
    value = Epilogue::apply(value);
    return gate.open() ? value : gate.apply(value);
  }
};

// Pixels outside the image are zeros that are multiplied with the weights like any pixel: as in a
// dense Conv, a NaN or Inf weight gives NaN there. Stored padding (condensed.h) is never
// multiplied.
class PackedConv {
 public:
  virtual ~PackedConv() = default;

  // Packs a valid view and geometry (see validate) for images of every size, or shares an existing
  // packed copy of the same content. Keeps no pointer into the view. Throws std::bad_alloc.
  static std::unique_ptr<PackedConv> pack(const CondensedView& view, const ConvGeometry& geometry,
                                          Isa isa, const Executor& executor);

  // The same with one kernel of the dispatch table, for tests and benchmarks. Throws
  // std::invalid_argument if the table lacks the name or the CPU cannot run it.
  static std::unique_ptr<PackedConv> pack_kernel(const CondensedView& view,
                                                 const ConvGeometry& geometry,
                                                 const std::string& kernel,
                                                 const Executor& executor);

  // y[n, o] = epilogue(bias[o] + convolution + residual[n, o]), pixel by pixel. x is [batch,
  // in_channels, height, width] and y [batch, out_channels, output_size(0, height), output_size(1,
  // width)], both dense and without alignment; y does not overlap x, and the residual, of y's
  // shape, may be y itself. The input must be valid for the geometry (see validate). The result is
  // bitwise equal for any number of threads of the executor.
  virtual void run(const float* x, const ConvInput& input, float* y, const ConvEpilogue& epilogue,
                   const Executor& executor) const = 0;

  // How run() shares an input of this size (at least one image) among `threads` threads.
  virtual WorkPlan plan(const ConvInput& input, size_t threads,
                        const DispatchCost& dispatch) const = 0;

  virtual std::vector<PackedInfo> info() const = 0;

  // Whether packing `view` with `geometry` would give this object, see GemmKernel::holds.
  virtual bool holds(const CondensedView& view, const ConvGeometry& geometry) const = 0;
};

// The scalar reference: sums in float32 in the order of the stored entries. It needs no packing, so
// it serves weights that are not constant; kernel tests compare with it.
void run_plain_conv(const CondensedView& view, const ConvGeometry& geometry, const float* x,
                    const ConvInput& input, float* y, const ConvEpilogue& epilogue);

}  // namespace fanin
