#include "cuda/emulation/conv.h"

#include <stdexcept>

#include "cuda/conv_layout.h"
#include "cuda/emulation/grid.h"

namespace fanin::cuda::emulation {

ConvReport run_conv(const CondensedView& view, const ConvGeometry& geometry, const ConvInput& input,
                    ValueType activations, int64_t blocks, const RunArguments& run) {
  if (input.batch < 1) throw std::invalid_argument("an empty batch launches nothing");
  Blob blob;
  const ConvLayout layout = pack_conv(view, geometry, blob);
  const ConvArgs args = layout.arguments(blob.bytes.data(), run, input);
  ConvPlan plan = plan_conv(args);
  if (blocks > 0) plan.grid_x = blocks;
  const Launch launch{plan.grid_x, 1, plan.warps, 0, 1};
  visit_type(activations,
             [&](auto x) { run_grid<ConvKernel<decltype(x)>>(args, args.outputs(), launch); });
  return {plan.warps, plan.grid_x, static_cast<int64_t>(blob.bytes.size())};
}

}  // namespace fanin::cuda::emulation
