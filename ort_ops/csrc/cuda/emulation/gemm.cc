#include "cuda/emulation/gemm.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>

#include "core/divide_up.h"
#include "core/thread_executor.h"
#include "cuda/delta_plan.h"
#include "cuda/dispatch.h"
#include "cuda/emulation/grid.h"
#include "cuda/visit.h"

namespace fanin::cuda::emulation {
namespace {

Launch launch_of(const Report& report) {
  return {report.grid_x, report.grid_y, report.warps, report.shared_bytes, report.cluster};
}

Report run_stream(const CondensedView& view, const Request& request, const RunArguments& run) {
  Blob blob;
  const StreamLayout layout = pack_stream(view, blob);
  const StreamPlan plan = plan_stream(layout, run.batch, request.activations, request.limits);
  const Report report{nullptr,           plan.warps,
                      plan.grid_x,       plan.grid_y,
                      plan.shared_bytes, static_cast<int64_t>(blob.bytes.size()),
                      layout.padding,    plan.staged ? plan.samples : 0};
  const StreamArgs args =
      complete(layout.arguments(blob.bytes.data()), run, plan, request.activations);
  visit_type(request.activations, [&](auto x) {
    visit_stream<decltype(x)>({layout.value_type, layout.index_bytes, plan.samples, plan.staged},
                              [&](auto kernel) {
                                run_grid<typename decltype(kernel)::Program>(
                                    args, run.batch * layout.out_features, launch_of(report));
                              });
  });
  return report;
}

Report run_panel(const CondensedView& view, const Request& request, const RunArguments& run) {
  Blob blob;
  const PanelLayout layout = pack_panel(view, panel_cut(view.in_features, request.limits), blob);
  const PanelPlan plan = plan_panel(layout, run, request.activations, request.limits);
  const Report report{nullptr,        plan.warps,           plan.grid_x,
                      plan.grid_y,    plan.shared_bytes,    static_cast<int64_t>(blob.bytes.size()),
                      layout.padding, plan.bands_per_block, static_cast<int>(layout.cut.cluster)};
  const PanelArgs args = complete(layout.arguments(blob.bytes.data()), run, plan);
  visit_type(request.activations, [&](auto x) {
    visit_panel<decltype(x)>(plan.vector_x, [&](auto kernel) {
      run_grid<typename decltype(kernel)::Program>(args, run.batch * layout.out_features,
                                                   launch_of(report));
    });
  });
  return report;
}

Report run_delta(const CondensedView& view, const Request& request, const RunArguments& run) {
  Blob blob;
  const DeltaLayout layout =
      pack_delta(view, delta_cut(view, request.limits), ThreadExecutor(2), blob);
  const DeltaPlan plan = plan_delta(layout, run, request.activations, request.limits);
  const DeltaArgs args = complete(layout.arguments(blob.bytes.data()), run, plan);
  Report report;
  report.warps = plan.warps;
  report.grid_x = plan.grid_x;
  report.grid_y = plan.grid_y;
  report.shared_bytes = plan.shared_bytes;
  report.packed_bytes = static_cast<int64_t>(blob.bytes.size());
  report.padding = layout.padding;
  report.variant = plan.samples;
  report.parts = static_cast<int>(layout.cut.parts);
  report.turns = static_cast<int>(divide_up(layout.tile_count, plan.grid_x));
  visit_type(request.activations, [&](auto x) {
    visit_delta<decltype(x)>({layout.value_type, plan.samples}, [&](auto kernel) {
      run_grid<typename decltype(kernel)::Program>(args, run.batch * layout.out_features,
                                                   launch_of(report));
    });
  });
  return report;
}

// Cycles of shared memory for the stores of a warp to its image, on average: one for each word of
// the bank that gets most.
double store_cycles(const ExpandLayout& layout, const ExpandArgs& args) {
  const auto* vectors = static_cast<const Raw<16>*>(args.words);
  int64_t stores = 0, cycles = 0;
  for (int64_t tile = 0; tile < layout.tiles * layout.chunks; ++tile)
    for (int32_t first = args.starts[tile]; first < args.starts[tile + 1]; first += 32)
      for (int i = 0; i < ExpandShape::kVectorWords; ++i) {
        std::set<uint32_t> banks[32];
        size_t most = 0;
        for (int32_t at = first; at < std::min(first + 32, args.starts[tile + 1]); ++at) {
          const uint32_t word = (vectors[at].words[i] & 0xffff) / 2;
          banks[word % 32].insert(word);
          most = std::max(most, banks[word % 32].size());
        }
        ++stores;
        cycles += static_cast<int64_t>(most);
      }
  return stores > 0 ? static_cast<double>(cycles) / static_cast<double>(stores) : 1.0;
}

Report run_expand(const CondensedView& view, const Request& request, const RunArguments& run) {
  Blob blob;
  const ExpandLayout layout = pack_expand(view, request.activations, blob);
  const ExpandPlan plan = plan_expand(layout, run, request.limits);
  const ExpandArgs args = complete(layout.arguments(blob.bytes.data()), run, plan);
  Report report;
  report.warps = plan.warps;
  report.grid_x = plan.grid_x;
  report.grid_y = plan.grid_y;
  report.shared_bytes = plan.shared_bytes;
  report.packed_bytes = static_cast<int64_t>(blob.bytes.size());
  report.padding = layout.padding;
  report.variant = plan.tile;
  report.cluster = plan.cluster;
  report.parts = plan.parts;
  report.stages = plan.stages;
  report.store_cycles = store_cycles(layout, args);
  const auto run_program = [&](auto kernel) {
    run_grid<typename decltype(kernel)::Program>(args, run.batch * layout.out_features,
                                                 launch_of(report));
  };
  const ExpandKey key{plan.tile, plan.vector_x};
  if (request.activations == ValueType::kFloat16)
    visit_expand<Float16>(key, run_program);
  else
    visit_expand<Bfloat16>(key, run_program);
  return report;
}

// Plans divide by these numbers of a device.
void check_limits(const DeviceLimits& limits) {
  constexpr int64_t kLeastSharedBytes = 48 << 10;
  if (limits.multiprocessors < 1 || limits.cluster < 1 ||
      limits.cluster > PanelShape::kMaxCluster || limits.shared_bytes_per_block < kLeastSharedBytes)
    throw std::invalid_argument("a device has multiprocessors, clusters of 1 to " +
                                std::to_string(PanelShape::kMaxCluster) + " blocks, and at least " +
                                std::to_string(kLeastSharedBytes) +
                                " bytes of shared memory for a block");
}

}  // namespace

Report run_gemm(const CondensedView& view, const Request& request, const RunArguments& run) {
  check_limits(request.limits);
  if (run.batch < 1) throw std::invalid_argument("an empty batch launches nothing");
  const LayerFacts facts = LayerFacts::of(view, request.activations);
  const KernelRow& row =
      request.kernel.empty()
          ? *select_kernels(facts, {run.batch, run.batch}, request.limits, unproven_requested())
                 .front()
                 .row
          : find_kernel(request.kernel, request.activations);
  refuse_impossible(row, facts, request.limits);
  Report report;
  if (row.layout == Layout::kStream) {
    report = run_stream(view, request, run);
  } else if (row.layout == Layout::kPanel) {
    report = run_panel(view, request, run);
  } else if (row.layout == Layout::kDelta) {
    report = run_delta(view, request, run);
  } else {
    report = run_expand(view, request, run);
  }
  report.kernel = row.name;
  return report;
}

}  // namespace fanin::cuda::emulation
