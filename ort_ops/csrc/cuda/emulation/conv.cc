#include "cuda/emulation/conv.h"

#include <stdexcept>
#include <string>

#include "cuda/conv_layout.h"
#include "cuda/dispatch.h"
#include "cuda/emulation/grid.h"
#include "cuda/expand_plan.h"
#include "cuda/visit.h"

namespace fanin::cuda::emulation {
namespace {

Report run_direct(const CondensedView& view, const ConvGeometry& geometry, const ConvInput& input,
                  ValueType activations, int64_t blocks, const RunArguments& run) {
  Blob blob;
  const ConvLayout layout = pack_conv(view, geometry, blob);
  const ConvArgs args = layout.arguments(blob.bytes.data(), run, input);
  const ConvPlan plan = plan_conv(args);
  Report report;
  report.warps = plan.warps;
  report.grid_x = blocks > 0 ? blocks : plan.grid_x;
  report.grid_y = 1;
  report.packed_bytes = static_cast<int64_t>(blob.bytes.size());
  const Launch launch{report.grid_x, 1, plan.warps, 0, 1};
  visit_type(activations,
             [&](auto x) { run_grid<ConvKernel<decltype(x)>>(args, args.outputs(), launch); });
  return report;
}

Report run_expand(const CondensedView& view, const ConvGeometry& geometry, const ConvInput& input,
                  const Request& request, const RunArguments& run) {
  Blob blob;
  const ExpandConvLayout layout = pack_expand_conv(view, geometry, request.activations, blob);
  const ExpandPlan plan = plan_expand_conv(layout, run, input, request.limits);
  const ExpandConvArgs args =
      complete(layout.arguments(blob.bytes.data()), run, input, geometry, plan);
  Report report;
  report.warps = plan.warps;
  report.grid_x = plan.grid_x;
  report.grid_y = plan.grid_y;
  report.shared_bytes = plan.shared_bytes;
  report.packed_bytes = static_cast<int64_t>(blob.bytes.size());
  report.padding = layout.tiles.padding;
  report.variant = plan.tile;
  report.vector_x = plan.vector_x;
  report.cluster = plan.cluster;
  report.parts = plan.parts;
  report.stages = plan.stages;
  visit_type(request.activations, [&](auto x) {
    visit_expand_conv<decltype(x)>({plan.tile, plan.vector_x}, [&](auto kernel) {
      run_grid<typename decltype(kernel)::Program>(
          args, args.batch * args.out_features,
          {plan.grid_x, plan.grid_y, plan.warps, plan.shared_bytes, plan.cluster});
    });
  });
  return report;
}

}  // namespace

Report run_conv(const CondensedView& view, const ConvGeometry& geometry, const ConvInput& input,
                const Request& request, int64_t blocks, const RunArguments& run) {
  check_limits(request.limits);
  if (input.batch < 1) throw std::invalid_argument("an empty batch launches nothing");
  const ConvFacts facts = ConvFacts::of(view, geometry, request.activations);
  const KernelRow& row =
      request.kernel.empty()
          ? select_conv_kernel(facts, request.limits, {unproven_requested(), request.tf32})
          : find_kernel(Op::kConv, request.kernel, request.activations);
  Report report;
  if (row.layout == Layout::kExpand) {
    const std::string problem = expand_problem(facts, request.limits);
    if (!problem.empty()) throw std::invalid_argument(problem);
    report = run_expand(view, geometry, input, request, run);
  } else {
    report = run_direct(view, geometry, input, request.activations, blocks, run);
  }
  report.kernel = row.name;
  return report;
}

}  // namespace fanin::cuda::emulation
