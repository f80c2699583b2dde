// The dispatch table of convolutions of int8 weights.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/cpu_features.h"
#include "kernels/quantized_conv_kernel.h"

namespace fanin {

struct QuantizedConvKernelRow {
  std::string name;  // i8-conv-layout-ISA
  Isa isa;           // that the CPU must have
  // Packs a valid view; the result does not depend on the number of threads. Throws std::bad_alloc.
  std::unique_ptr<QuantizedConvKernel> (*pack)(const CondensedView& view,
                                               const ConvGeometry& geometry,
                                               const Executor& executor);
};

// Every kernel of this build, in order of preference.
const std::vector<QuantizedConvKernelRow>& quantized_conv_kernel_table();

// The first row that `isa` includes.
const QuantizedConvKernelRow& select_quantized_conv_kernel(Isa isa, const CondensedView& view,
                                                           const ConvGeometry& geometry);

// The row of that name. Throws std::invalid_argument if the table lacks it or the CPU cannot run
// it.
const QuantizedConvKernelRow& find_quantized_conv_kernel(const std::string& name);

}  // namespace fanin
