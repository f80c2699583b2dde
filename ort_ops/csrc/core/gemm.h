// A condensed layer, packed once and run many times, for the ops and the binding.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/condensed.h"
#include "core/cpu_features.h"
#include "core/executor.h"
#include "core/work_plan.h"

namespace fanin {

struct Epilogue {
  const float* residual = nullptr;  // [batch, out_features], or null for none
  float clip_min = -std::numeric_limits<float>::infinity();
  float clip_max = std::numeric_limits<float>::infinity();

  // NaN stays NaN. The comparisons have the order of vector max/min instructions.
  float apply(float value) const {
    value = value < clip_min ? clip_min : value;
    return value > clip_max ? clip_max : value;
  }
};

// The batch sizes that a layer may run with: a single one if the graph's shape is static.
struct BatchRange {
  int64_t min = 1;
  int64_t max = std::numeric_limits<int64_t>::max();
};

// Pixels of an image.
struct PixelRange {
  int64_t min = 0;
  int64_t max = std::numeric_limits<int64_t>::max();
};

// The result of packing, for reports and tests.
struct PackedInfo {
  std::string kernel;      // name in the dispatch table
  BatchRange batches;      // that it serves
  PixelRange pixels;       // likewise, of a convolution
  int64_t bytes = 0;       // memory that the packed copy takes
  double padding = 1.0;    // stored lanes / true weights
  double remainder = 0.0;  // share of the weights outside the vector layout
  bool shared = false;     // packed before, by somebody who still holds it
  double seconds = 0.0;    // that packing took, or making sure that the shared copy is the same
};

class PackedGemm {
 public:
  virtual ~PackedGemm() = default;

  // Packs a valid view (see validate) for every kernel that `batches` needs on `isa`, or shares
  // existing packed copies of the same content (packed_cache.h). Keeps no pointer into the view.
  // Throws std::bad_alloc.
  static std::unique_ptr<PackedGemm> pack(const CondensedView& view, BatchRange batches, Isa isa,
                                          const Executor& executor);

  // The same with one kernel of the dispatch table for every batch, for tests and benchmarks.
  // Throws std::invalid_argument if the table lacks the name or the CPU cannot run it.
  static std::unique_ptr<PackedGemm> pack_kernel(const CondensedView& view, BatchRange batches,
                                                 const std::string& kernel,
                                                 const Executor& executor);

  // y[b, o] = epilogue(bias[o] + sum + residual[b, o]) for b < batch, o < out_features. x is
  // [batch, in_features] and y [batch, out_features], both dense and without alignment; y does not
  // overlap x. The result is bitwise equal for any number of threads of the executor.
  virtual void run(const float* x, int64_t batch, float* y, const Epilogue& epilogue,
                   const Executor& executor) const = 0;

  // How run() shares a batch (at least 1) among `threads` threads.
  virtual WorkPlan plan(int64_t batch, size_t threads, const DispatchCost& dispatch) const = 0;

  virtual std::vector<PackedInfo> info() const = 0;

  // Whether packing `view` would give this object, see GemmKernel::holds.
  virtual bool holds(const CondensedView& view) const = 0;
};

// The scalar reference: sums in float32 in the order of the stored entries. It needs no packing, so
// it serves weights that are not constant; kernel tests compare with it.
void run_plain(const CondensedView& view, const float* x, int64_t batch, float* y,
               const Epilogue& epilogue);

}  // namespace fanin
