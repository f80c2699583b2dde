#include "kernels/conv_dispatch.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "kernels/conv_tables.h"
#include "kernels/conv_taps.h"
#include "kernels/dispatch_find.h"
#include "kernels/panel_conv.h"

namespace fanin {
namespace {

// A group of rows has 8 places, whatever the outputs of a group of filters: with 2 outputs the
// panel takes 0.4 to 0.7 of the time of taps, with 1 twice as long (96 channels, 28 x 28; Cascade
// Lake).
constexpr int64_t kMinGroupOutputs = 2;

// What is found out about a tile grows with the taps; 2-d windows are far smaller.
constexpr int64_t kMaxTaps = 4096;

// Below it, segments of the panel are nearly empty, as those of CondensedGemm.
constexpr double kMinDensity = 3e-5;

template <const ConvOps& kOps>
std::unique_ptr<ConvKernel> pack_panels(const CondensedView& view, const ConvGeometry& geometry,
                                        const Executor& executor) {
  return pack_panel_conv(view, geometry, kOps, executor);
}

}  // namespace

const std::vector<ConvKernelRow>& conv_kernel_table() {
  static const std::vector<ConvKernelRow> table = {
#if defined(__x86_64__)
      {"f32-conv-panel32-avx512f", Isa::kAvx512f, kMinGroupOutputs, kMaxTaps, kMinDensity,
       pack_panels<kConvPanel32Avx512f>},
      {"f32-conv-panel16-avx2", Isa::kAvx2, kMinGroupOutputs, kMaxTaps, kMinDensity,
       pack_panels<kConvPanel16Avx2>},
#elif defined(__aarch64__)
      {"f32-conv-panel16-neon", Isa::kNeon, kMinGroupOutputs, kMaxTaps, kMinDensity,
       pack_panels<kConvPanel16Neon>},
#endif
      {"f32-conv-taps-scalar", Isa::kScalar, 1, std::numeric_limits<int64_t>::max(), 0.0,
       pack_conv_taps},
  };
  return table;
}

const ConvKernelRow& select_conv_kernel(Isa isa, const CondensedView& view,
                                        const ConvGeometry& geometry) {
  const double density = static_cast<double>(std::min(view.fan_in, view.in_features)) /
                         static_cast<double>(view.in_features);
  for (const ConvKernelRow& row : conv_kernel_table())
    if (row.isa <= isa && row.min_group_outputs <= geometry.group_outputs() &&
        geometry.taps() <= row.max_taps && row.min_density <= density)
      return row;
  throw std::logic_error("the table of convolution kernels has no row for this layer");
}

const ConvKernelRow& find_conv_kernel(const std::string& name) {
  return find_row(conv_kernel_table(), name);
}

}  // namespace fanin
