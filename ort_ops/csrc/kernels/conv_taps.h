// Tap by tap over rows of pixels: for any CPU, any density and few filters a group.
#pragma once

#include "kernels/conv_kernel.h"
#include "kernels/conv_rows.h"

namespace fanin {

std::unique_ptr<ConvKernel> pack_conv_taps(const CondensedView& view, const ConvGeometry& geometry,
                                           const Executor& executor);

// The same of rows that another kernel holds, for what that one does not do.
WorkPlan plan_conv_taps(const ConvRows& rows, const ConvGeometry& geometry, const ConvInput& input,
                        size_t threads, const DispatchCost& dispatch);
void run_conv_taps(const ConvRows& rows, const ConvGeometry& geometry, const float* x,
                   const ConvInput& input, float* y, const ConvEpilogue& epilogue,
                   const Executor& executor);

}  // namespace fanin
