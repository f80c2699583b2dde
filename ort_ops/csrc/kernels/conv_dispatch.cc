#include "kernels/conv_dispatch.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "kernels/conv_by_size.h"
#include "kernels/conv_lanes.h"
#include "kernels/conv_planes.h"
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

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

template <const ConvPlaneOps& kOps>
std::unique_ptr<ConvKernel> pack_planes(const CondensedView& view, const ConvGeometry& geometry,
                                        const Executor&) {
  return pack_conv_planes(view, geometry, kOps);
}

// The kernel, or both where large images may be faster by planes.
template <const ConvPlaneOps& kPlanes>
std::unique_ptr<ConvKernel> with_planes(std::unique_ptr<ConvKernel> kernel,
                                        const CondensedView& view, const ConvGeometry& geometry) {
  if (!suits_large_planes(view, geometry)) return kernel;
  return conv_by_size(std::move(kernel), pack_conv_planes(view, geometry, kPlanes));
}

template <const ConvLaneOps& kOps, const ConvPlaneOps& kPlanes>
std::unique_ptr<ConvKernel> pack_lanes(const CondensedView& view, const ConvGeometry& geometry,
                                       const Executor&) {
  return with_planes<kPlanes>(pack_conv_lanes(view, geometry, kOps), view, geometry);
}

template <const ConvOps& kOps, const ConvPlaneOps& kPlanes>
std::unique_ptr<ConvKernel> pack_panels(const CondensedView& view, const ConvGeometry& geometry,
                                        const Executor& executor) {
  return with_planes<kPlanes>(pack_panel_conv(view, geometry, kOps, executor), view, geometry);
}

}  // namespace

const std::vector<ConvKernelRow>& conv_kernel_table() {
  // Never destroyed, as the other table.
  static const auto& table = *new std::vector<ConvKernelRow>{
#if defined(__x86_64__)
      {"f32-conv-lanes16-avx512f", Isa::kAvx512f, fits_lanes, 1, kMaxTaps, 0.0,
       pack_lanes<kConvLanes16Avx512f, kConvPlanesAvx512f>},
      {"f32-conv-planes-avx512f", Isa::kAvx512f, suits_planes, 1, kMaxTaps, 0.0,
       pack_planes<kConvPlanesAvx512f>},
      {"f32-conv-panel32-avx512f", Isa::kAvx512f, nullptr, kMinGroupOutputs, kMaxTaps, kMinDensity,
       pack_panels<kConvPanel32Avx512f, kConvPlanesAvx512f>},
      {"f32-conv-lanes8-avx2", Isa::kAvx2, fits_lanes, 1, kMaxTaps, 0.0,
       pack_lanes<kConvLanes8Avx2, kConvPlanesAvx2>},
      {"f32-conv-planes-avx2", Isa::kAvx2, suits_planes, 1, kMaxTaps, 0.0,
       pack_planes<kConvPlanesAvx2>},
      {"f32-conv-panel16-avx2", Isa::kAvx2, nullptr, kMinGroupOutputs, kMaxTaps, kMinDensity,
       pack_panels<kConvPanel16Avx2, kConvPlanesAvx2>},
#elif defined(__aarch64__)
      {"f32-conv-lanes4-neon", Isa::kNeon, fits_lanes, 1, kMaxTaps, 0.0,
       pack_lanes<kConvLanes4Neon, kConvPlanesNeon>},
      {"f32-conv-planes-neon", Isa::kNeon, suits_planes, 1, kMaxTaps, 0.0,
       pack_planes<kConvPlanesNeon>},
      {"f32-conv-panel16-neon", Isa::kNeon, nullptr, kMinGroupOutputs, kMaxTaps, kMinDensity,
       pack_panels<kConvPanel16Neon, kConvPlanesNeon>},
#endif
      {"f32-conv-taps-scalar", Isa::kScalar, nullptr, 1, kAny, 0.0, pack_conv_taps},
  };
  return table;
}

const ConvKernelRow& select_conv_kernel(Isa isa, const CondensedView& view,
                                        const ConvGeometry& geometry) {
  const double density = static_cast<double>(std::min(view.fan_in, view.in_features)) /
                         static_cast<double>(view.in_features);
  for (const ConvKernelRow& row : conv_kernel_table())
    if (row.isa <= isa && row.min_group_outputs <= geometry.group_outputs() &&
        geometry.taps() <= row.max_taps && row.min_density <= density &&
        (!row.fits || row.fits(view, geometry)))
      return row;
  throw std::logic_error("the table of convolution kernels has no row for this layer");
}

const ConvKernelRow& find_conv_kernel(const std::string& name) {
  return find_row(conv_kernel_table(), name);
}

}  // namespace fanin
