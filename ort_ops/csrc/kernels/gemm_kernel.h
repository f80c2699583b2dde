// The interface of all kernel families of the dispatch table.
#pragma once

#include <memory>

#include "core/condensed.h"
#include "core/executor.h"
#include "core/gemm.h"
#include "core/work_plan.h"

namespace fanin {

// Memory and efficiency of a packed layout, see PackedInfo.
struct LayoutInfo {
  int64_t bytes = 0;
  double padding = 1.0;
  double remainder = 0.0;
};

// One layer in one layout. Read-only after packing, so threads may share it.
class LayerKernel {
 public:
  virtual ~LayerKernel() = default;

  // How run() would share a batch among `threads` threads.
  virtual WorkPlan plan(int64_t batch, size_t threads, const DispatchCost& dispatch) const = 0;

  virtual LayoutInfo info() const = 0;

  // Whether packing the valid `view` would give this object: the same weights and biases at the
  // same positions, bit for bit. Reads them back from the packed layout, so it compares the data
  // that runs use, and no second copy of the source is needed.
  virtual bool holds(const CondensedView& view) const = 0;
};

class GemmKernel : public LayerKernel {
 public:
  // See PackedGemm::run. Correct for every batch, even outside its range in the table.
  virtual void run(const float* x, int64_t batch, float* y, const Epilogue& epilogue,
                   const Executor& executor) const = 0;
};

}  // namespace fanin
