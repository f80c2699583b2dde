// The dispatch table of convolutions; dispatch.h has that of CondensedGemm.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/cpu_features.h"
#include "kernels/conv_kernel.h"

namespace fanin {

struct ConvKernelRow {
  std::string name;       // dtype-op-layout-ISA
  Isa isa;                // that the CPU must have
  const char* condition;  // the condition of `fits` in words; empty for none
  bool (*fits)(const CondensedView& view, const ConvGeometry& geometry);  // null: every layer
  int64_t min_pixels;                                                     // of an image
  int64_t min_group_outputs;
  int64_t max_taps;    // of the window in one channel
  double min_density;  // fan-in / in_features
  // Packs a valid view for the executor's number of threads. Throws std::bad_alloc.
  std::unique_ptr<ConvKernel> (*pack)(const CondensedView& view, const ConvGeometry& geometry,
                                      const Executor& executor);
};

// Every kernel of this build, in order of preference. A kernel with two alternative conditions has
// two rows.
const std::vector<ConvKernelRow>& conv_kernel_table();

// The first row that `isa` includes and that fits images of that many pixels.
const ConvKernelRow& select_conv_kernel(Isa isa, int64_t pixels, const CondensedView& view,
                                        const ConvGeometry& geometry);

// The largest image that `row`, selected for images of `first` pixels, serves: larger ones may have
// a preferred row.
int64_t last_pixels(const ConvKernelRow& row, Isa isa, int64_t first, const CondensedView& view,
                    const ConvGeometry& geometry);

// The row of that name. Throws std::invalid_argument if the table lacks it or the CPU cannot run
// it.
const ConvKernelRow& find_conv_kernel(const std::string& name);

}  // namespace fanin
