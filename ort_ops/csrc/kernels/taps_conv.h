// Tap by tap over rows of pixels, in scalar code: for any CPU, any density and any number of
// filters a group.
#pragma once

#include "kernels/conv_kernel.h"
#include "kernels/conv_rows.h"

namespace fanin {

std::unique_ptr<ConvKernel> pack_taps_conv(const CondensedView& view, const ConvGeometry& geometry,
                                           const Executor& executor);

// The same on the rows that another kernel holds, for sizes that it leaves to this one.
WorkPlan plan_taps_conv(const ConvRows& rows, const ConvGeometry& geometry, const ConvInput& input,
                        size_t threads, const DispatchCost& dispatch);
void run_taps_conv(const ConvRows& rows, const ConvGeometry& geometry, const float* x,
                   const ConvInput& input, float* y, const ConvEpilogue& epilogue,
                   const Executor& executor);

}  // namespace fanin
