#include "kernels/conv_dispatch.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/conv_tables.h"
#include "kernels/conv_taps.h"
#include "kernels/dispatch_find.h"
#include "kernels/panel_conv.h"

namespace fanin {
namespace {

template <const ConvOps& kOps>
std::unique_ptr<ConvKernel> pack_panels(const CondensedView& view, const ConvGeometry& geometry,
                                        const ConvInput& expected, const Executor& executor) {
  return pack_panel_conv(view, geometry, expected, kOps, executor);
}

}  // namespace

const std::vector<ConvKernelRow>& conv_kernel_table() {
  static const std::vector<ConvKernelRow> table = {
#if defined(__x86_64__)
      {"f32-conv-panel32-avx512f", Isa::kAvx512f, 4, 0.0, pack_panels<kConvPanel32Avx512f>},
      {"f32-conv-panel16-avx2", Isa::kAvx2, 4, 0.0, pack_panels<kConvPanel16Avx2>},
#elif defined(__aarch64__)
      {"f32-conv-panel16-neon", Isa::kNeon, 4, 0.0, pack_panels<kConvPanel16Neon>},
#endif
      {"f32-conv-taps-scalar", Isa::kScalar, 1, 0.0, pack_conv_taps},
  };
  return table;
}

const ConvKernelRow& select_conv_kernel(Isa isa, const CondensedView& view,
                                        const ConvGeometry& geometry) {
  const double density = static_cast<double>(std::min(view.fan_in, view.in_features)) /
                         static_cast<double>(view.in_features);
  for (const ConvKernelRow& row : conv_kernel_table())
    if (row.isa <= isa && row.min_group_outputs <= geometry.group_outputs() &&
        row.min_density <= density)
      return row;
  throw std::logic_error("the table of convolution kernels has no row for this layer");
}

const ConvKernelRow& find_conv_kernel(const std::string& name) {
  return find_row(conv_kernel_table(), name);
}

}  // namespace fanin
