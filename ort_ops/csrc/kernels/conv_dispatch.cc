#include "kernels/conv_dispatch.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

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

// From here on channels come from L3, one after another faster than several at a time (Cascade
// Lake): depthwise 3 x 3 over 72 x 56 x 56 in 278 us by planes and 464 by lanes of 16 channels, 5 x
// 5 over 120 x 28 x 28 in 187 and 142; 1 x 1 with a fan-in of 1 from 16 to 64 x 112 x 112 in 540 us
// in place and 1150 by panels, with 6 from 64 to 24 x 56 x 56 in 69 and 96, with 4 from 40 to 120 x
// 28 x 28 in 57 and 51.
constexpr int64_t kLargePixels = 2048;

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

// Few channels are padded in no time, and all filters of the group read them from L1. (Other limits
// were not tried: networks have 1, 3 or 4 channels, or 16 and more.)
constexpr const char* kFewChannels = "at most 4 channels a group";
bool has_few_channels(const CondensedView&, const ConvGeometry& geometry) {
  return geometry.group_inputs() <= 4;
}

// Few weights of a filter, for which a panel of all channels is not worth filling.
constexpr const char* kFewTaps =
    "1 x 1 without strides and pads and at most 8 weights a filter, or depthwise without strides "
    "and at most 9 places in the window";
bool has_few_taps(const CondensedView& view, const ConvGeometry& geometry) {
  if (geometry.is_pointwise()) return view.fan_in <= 8;
  return geometry.group_inputs() == 1 && geometry.taps() <= 9 && geometry.strides[0] == 1 &&
         geometry.strides[1] == 1;
}

constexpr const char* kWholeDepthwise = "depthwise with a weight at every place of every filter";

template <const ConvPlaneOps& kOps>
std::unique_ptr<ConvKernel> pack_planes(const CondensedView& view, const ConvGeometry& geometry,
                                        const Executor&) {
  return pack_conv_planes(view, geometry, kOps);
}

template <const ConvLaneOps& kOps>
std::unique_ptr<ConvKernel> pack_lanes(const CondensedView& view, const ConvGeometry& geometry,
                                       const Executor&) {
  return pack_conv_lanes(view, geometry, kOps);
}

template <const ConvOps& kOps>
std::unique_ptr<ConvKernel> pack_panels(const CondensedView& view, const ConvGeometry& geometry,
                                        const Executor& executor) {
  return pack_panel_conv(view, geometry, kOps, executor);
}

// The rows of an instruction set with vectors, the preferred first.
template <const ConvLaneOps& kLanes, const ConvPlaneOps& kPlanes, const ConvOps& kPanel>
void add_rows(Isa isa, const std::string& lanes, const std::string& panel,
              std::vector<ConvKernelRow>& rows) {
  const auto name = [isa](const std::string& layout) {
    return "f32-conv-" + layout + "-" + isa_name(isa);
  };
  rows.push_back({name("planes"), isa, kFewTaps, has_few_taps, kLargePixels, 1, kMaxTaps, 0.0,
                  pack_planes<kPlanes>});
  rows.push_back(
      {name(lanes), isa, kWholeDepthwise, fits_lanes, 0, 1, kMaxTaps, 0.0, pack_lanes<kLanes>});
  rows.push_back({name("planes"), isa, kFewChannels, has_few_channels, 0, 1, kMaxTaps, 0.0,
                  pack_planes<kPlanes>});
  rows.push_back({name(panel), isa, "", nullptr, 0, kMinGroupOutputs, kMaxTaps, kMinDensity,
                  pack_panels<kPanel>});
}

std::vector<ConvKernelRow> make_table() {
  std::vector<ConvKernelRow> rows;
#if defined(__x86_64__)
  add_rows<kConvLanes16Avx512f, kConvPlanesAvx512f, kConvPanel32Avx512f>(Isa::kAvx512f, "lanes16",
                                                                         "panel32", rows);
  add_rows<kConvLanes8Avx2, kConvPlanesAvx2, kConvPanel16Avx2>(Isa::kAvx2, "lanes8", "panel16",
                                                               rows);
#elif defined(__aarch64__)
  add_rows<kConvLanes4Neon, kConvPlanesNeon, kConvPanel16Neon>(Isa::kNeon, "lanes4", "panel16",
                                                               rows);
#endif
  rows.push_back(
      {"f32-conv-taps-scalar", Isa::kScalar, "", nullptr, 0, 1, kAny, 0.0, pack_conv_taps});
  return rows;
}

bool fits(const ConvKernelRow& row, Isa isa, int64_t pixels, const CondensedView& view,
          const ConvGeometry& geometry) {
  const double density = static_cast<double>(std::min(view.fan_in, view.in_features)) /
                         static_cast<double>(view.in_features);
  return row.isa <= isa && row.min_pixels <= pixels &&
         row.min_group_outputs <= geometry.group_outputs() && geometry.taps() <= row.max_taps &&
         row.min_density <= density && (!row.fits || row.fits(view, geometry));
}

}  // namespace

const std::vector<ConvKernelRow>& conv_kernel_table() {
  // Never destroyed, as the other table.
  static const auto& table = *new std::vector<ConvKernelRow>(make_table());
  return table;
}

const ConvKernelRow& select_conv_kernel(Isa isa, int64_t pixels, const CondensedView& view,
                                        const ConvGeometry& geometry) {
  for (const ConvKernelRow& row : conv_kernel_table())
    if (fits(row, isa, pixels, view, geometry)) return row;
  throw std::logic_error("the table of convolution kernels has no row for this layer");
}

int64_t last_pixels(const ConvKernelRow& row, Isa isa, int64_t first, const CondensedView& view,
                    const ConvGeometry& geometry) {
  int64_t last = kAny;
  for (const ConvKernelRow& preferred : conv_kernel_table()) {
    if (&preferred == &row) break;
    const int64_t begin = preferred.min_pixels;
    if (first < begin && fits(preferred, isa, begin, view, geometry))
      last = std::min(last, begin - 1);
  }
  return last;
}

const ConvKernelRow& find_conv_kernel(const std::string& name) {
  return find_row(conv_kernel_table(), name);
}

}  // namespace fanin
