#include "cuda/emulation/gemm.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "cuda/emulation/block.h"
#include "cuda/emulation/host_context.h"
#include "cuda/visit.h"

namespace fanin::cuda::emulation {
namespace {

template <typename Program, typename Args>
void run_grid(const Args& args, const Report& launch) {
  if (launch.grid_x < 1 || launch.grid_x > 0x7fffffff || launch.grid_y < 1 ||
      launch.grid_y > kMaxGridY)
    throw std::logic_error("a grid of " + std::to_string(launch.grid_x) + " x " +
                           std::to_string(launch.grid_y));
  std::vector<uint8_t> writes(static_cast<size_t>(args.batch * args.out_features));
  if (launch.grid_x % launch.cluster != 0) throw std::logic_error("a cluster is cut off");
  Cluster cluster(launch.cluster, launch.warps * 32, launch.shared_bytes);
  for (int64_t y = 0; y < launch.grid_y; ++y)
    for (int64_t x = 0; x < launch.grid_x; x += launch.cluster)
      cluster.run([&](int rank) {
        const HostContext context(cluster, rank, {x + rank, y, launch.grid_x, launch.grid_y},
                                  writes);
        Program::run(context, args);
      });
  if (std::count(writes.begin(), writes.end(), 1) != static_cast<int64_t>(writes.size()))
    throw std::logic_error("an output is not written");
}

Report run_stream(const CondensedView& view, const Request& request, const RunArguments& run) {
  Blob blob;
  const StreamLayout layout = pack_stream(view, blob);
  const StreamPlan plan = plan_stream(layout, run.batch, request.activations, request.limits);
  const Report report{plan.warps,
                      plan.grid_x,
                      plan.grid_y,
                      plan.shared_bytes,
                      static_cast<int64_t>(blob.bytes.size()),
                      layout.padding,
                      plan.staged ? plan.samples : 0};
  const StreamArgs args =
      complete(layout.arguments(blob.bytes.data()), run, plan, request.activations);
  visit_type(request.activations, [&](auto x) {
    visit_stream<decltype(x)>(
        {layout.value_type, layout.index_bytes, plan.samples, plan.staged},
        [&](auto kernel) { run_grid<typename decltype(kernel)::Program>(args, report); });
  });
  return report;
}

Report run_panel(const CondensedView& view, const Request& request, const RunArguments& run) {
  Blob blob;
  const PanelLayout layout = pack_panel(view, panel_cut(view.in_features, request.limits), blob);
  const PanelPlan plan = plan_panel(layout, run, request.activations, request.limits);
  const Report report{plan.warps,
                      plan.grid_x,
                      plan.grid_y,
                      plan.shared_bytes,
                      static_cast<int64_t>(blob.bytes.size()),
                      layout.padding,
                      plan.bands_per_block,
                      static_cast<int>(layout.cut.cluster)};
  const PanelArgs args = complete(layout.arguments(blob.bytes.data()), run, plan);
  visit_type(request.activations, [&](auto x) {
    visit_panel<decltype(x)>(plan.vector_x, [&](auto kernel) {
      run_grid<typename decltype(kernel)::Program>(args, report);
    });
  });
  return report;
}

}  // namespace

Report run_gemm(const CondensedView& view, const Request& request, const RunArguments& run) {
  if (run.batch < 1) throw std::invalid_argument("an empty batch launches nothing");
  if (request.layout == "stream") return run_stream(view, request, run);
  if (request.layout == "panel") return run_panel(view, request, run);
  throw std::invalid_argument("no layout is called " + request.layout);
}

}  // namespace fanin::cuda::emulation
