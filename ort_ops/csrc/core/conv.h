// A condensed convolution, packed once and run many times: what the ops and the binding call.
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

// Pixels outside the image are zeros, which meet the weights as any pixel does: as in a dense Conv,
// a NaN or Inf among the weights makes NaN of them. Stored padding (condensed.h) meets no pixel.
class PackedConv {
 public:
  virtual ~PackedConv() = default;

  // Packs a sound view and geometry (see validate) for images of every size, or shares what is
  // packed of the same content already. Keeps no pointer into the view. Throws std::bad_alloc.
  static std::unique_ptr<PackedConv> pack(const CondensedView& view, const ConvGeometry& geometry,
                                          Isa isa, const Executor& executor);

  // The same with one named kernel of the dispatch table: for tests and benches. Throws
  // std::invalid_argument for a name that the table or the CPU lacks.
  static std::unique_ptr<PackedConv> pack_kernel(const CondensedView& view,
                                                 const ConvGeometry& geometry,
                                                 const std::string& kernel,
                                                 const Executor& executor);

  // y[n, o] = epilogue(bias[o] + convolution + residual[n, o]), pixel by pixel. x is [batch,
  // in_channels, height, width] and y [batch, out_channels, output_size(0, height), output_size(1,
  // width)], both dense and without alignment; y does not overlap x, and the residual, of y's
  // shape, may be y itself. The input is sound for the geometry (see validate). The result does not
  // depend on the executor's number of threads, bit for bit.
  virtual void run(const float* x, const ConvInput& input, float* y, const ConvEpilogue& epilogue,
                   const Executor& executor) const = 0;

  // How run() shares an input of this size, of at least one image, between so many threads.
  virtual WorkPlan plan(const ConvInput& input, size_t threads,
                        const DispatchCost& dispatch) const = 0;

  virtual std::vector<PackedInfo> info() const = 0;

  // Whether this is what packing `view` with `geometry` would give, see GemmKernel::holds.
  virtual bool holds(const CondensedView& view, const ConvGeometry& geometry) const = 0;
};

// The scalar reference: sums in float32 in the order of the stored entries. Needs no packing: it is
// the path for weights that are not constant, and the oracle of the kernel tests.
void run_plain_conv(const CondensedView& view, const ConvGeometry& geometry, const float* x,
                    const ConvInput& input, float* y, const ConvEpilogue& epilogue);

}  // namespace fanin
