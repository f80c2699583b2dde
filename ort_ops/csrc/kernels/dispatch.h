// The dispatch table of CondensedGemm, which decides which kernel runs. Python returns it
// (kernel_table()); tests and benchmarks go through all of its rows.
#pragma once

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/cpu_features.h"
#include "core/gemm.h"
#include "kernels/gemm_kernel.h"

namespace fanin {

struct KernelRow {
  std::string name;   // dtype-op-layout-ISA
  Isa isa;            // that the CPU must have
  ValueType weights;  // as the layout stores them; float32 also takes 16-bit values and widens them
  ValueType compute;  // kBfloat16: rounds x itself, and takes only layers that compute so
  BatchRange batches;
  int64_t min_fan_in;
  int64_t max_fan_in;
  double min_density;  // fan-in / in_features
  double max_density;
  bool suits_cpu;  // else it runs only if forced by name
  // Packs a valid view for the executor's number of threads. Throws std::bad_alloc.
  std::unique_ptr<GemmKernel> (*pack)(const CondensedView& view, const Executor& executor);
};

// Every kernel of this build, in order of preference.
const std::vector<KernelRow>& kernel_table();

// The first row that fits and that `isa` includes.
const KernelRow& select_kernel(Isa isa, int64_t batch, const CondensedView& view);

// The last batch that `row`, selected for batch `first`, serves if the batch is symbolic. A row
// that serves every batch ends where a preferred one that also does so begins.
int64_t last_batch(const KernelRow& row, Isa isa, int64_t first, const CondensedView& view);

// The row of that name. Throws std::invalid_argument if the table lacks it, the CPU cannot run it,
// or it is a kernel of 16-bit weights or of bfloat16 and the view has another type.
const KernelRow& find_kernel(const std::string& name, const CondensedView& view);

}  // namespace fanin
