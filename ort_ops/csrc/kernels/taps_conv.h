// The taps kernel: scalar code, tap by tap over rows of pixels, for any CPU, any density and any
// number of filters per group.
#pragma once

#include "kernels/conv_kernel.h"
#include "kernels/conv_rows.h"

namespace fanin {

std::unique_ptr<ConvKernel> pack_taps_conv(const CondensedView& view, const ConvGeometry& geometry,
                                           const Executor& executor);

// The same on the rows of another kernel, for sizes that the other kernel does not support.
WorkPlan plan_taps_conv(const ConvRows& rows, const ConvGeometry& geometry, const ConvInput& input,
                        size_t threads, const DispatchCost& dispatch);
void run_taps_conv(const ConvRows& rows, const ConvGeometry& geometry, const float* x,
                   const ConvInput& input, float* y, const ConvEpilogue& epilogue,
                   const Executor& executor);

}  // namespace fanin
