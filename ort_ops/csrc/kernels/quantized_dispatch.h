// The dispatch table of int8 layers, as dispatch.h is of the others.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/cpu_features.h"
#include "core/quantized_gemm.h"
#include "kernels/quantized_kernel.h"

namespace fanin {

struct QuantizedKernelRow {
  std::string name;  // i8-op-layout-ISA
  Isa isa;           // that the CPU must have
  BatchRange batches;
  int64_t min_weights;  // stored entries of the layer
  double min_density;   // fan-in / in_features
  // Packs a valid view; the result does not depend on the number of threads. Throws std::bad_alloc.
  std::unique_ptr<QuantizedKernel> (*pack)(const CondensedView& view, const Executor& executor);
  bool zen4_only = false;    // else it runs only if forced by name
  bool fixed_batch = false;  // only for layers of one batch: others would keep a further copy

  bool suits(CpuKind cpu) const { return !zen4_only || cpu == CpuKind::kZen4; }
};

// What a kernel is chosen for, beside the layer.
struct QuantizedUse {
  Isa isa;
  CpuKind cpu;
  BatchRange batches;  // that the layer serves
};

// Every kernel of this build, in order of preference.
const std::vector<QuantizedKernelRow>& quantized_kernel_table();

// The first row that fits and that the instruction set includes.
const QuantizedKernelRow& select_quantized_kernel(const QuantizedUse& use, int64_t batch,
                                                  const CondensedView& view);

// The last batch that `row`, selected for batch `first`, serves if the batch is symbolic.
int64_t last_quantized_batch(const QuantizedKernelRow& row, const QuantizedUse& use, int64_t first,
                             const CondensedView& view);

// The row of that name. Throws std::invalid_argument if the table lacks it or the CPU cannot run
// it.
const QuantizedKernelRow& find_quantized_kernel(const std::string& name);

}  // namespace fanin
