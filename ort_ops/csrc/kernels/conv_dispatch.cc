#include "kernels/conv_dispatch.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "kernels/conv_tables.h"
#include "kernels/depthwise_conv.h"
#include "kernels/direct_conv.h"
#include "kernels/dispatch_find.h"
#include "kernels/panel_conv.h"
#include "kernels/taps_conv.h"

namespace fanin {
namespace {

// A group of a panel has 8 rows even if a convolution group has fewer outputs: with 2 outputs the
// panel takes 0.4 to 0.7 of the time of taps, with 1 twice as long (96 channels, 28 x 28; Cascade
// Lake).
constexpr int64_t kMinGroupOutputs = 2;

// The spans of a tile take memory for each tap; 2-d windows have far fewer taps than this.
constexpr int64_t kMaxTaps = 4096;

// Below it, segments of the panel are nearly empty, as in CondensedGemm.
constexpr double kMinDensity = 3e-5;

// Images of at least this size come from L3, where reading one channel after another is faster than
// reading several at a time. In us, direct against depthwise or panel (Cascade Lake): depthwise 3 x
// 3 over 72 x 56 x 56, 278 and 464; 5 x 5 over 120 x 28 x 28, 187 and 142; 1 x 1 from 16 to 64 x
// 112 x 112 with a fan-in of 1, 540 and 1150; from 64 to 24 x 56 x 56 with 6, 69 and 96; from 40 to
// 120 x 28 x 28 with 4, 57 and 51.
constexpr int64_t kLargePixels = 2048;

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

// Copying few channels takes little time, and all filters of the group read the copies from L1.
// (Other limits were not tried: networks have 1, 3 or 4 channels, or 16 and more.)
constexpr const char* kFewChannels = "at most 4 channels a group";
bool has_few_channels(const CondensedView&, const ConvGeometry& geometry) {
  return geometry.group_inputs() <= 4;
}

// With few weights per filter, filling a panel with all channels does not pay off.
constexpr const char* kFewWeights =
    "1 x 1 without strides and pads and at most 8 weights a filter, or depthwise without strides "
    "and at most 9 places in the window";
bool has_few_weights(const CondensedView& view, const ConvGeometry& geometry) {
  if (geometry.is_pointwise()) return view.fan_in <= 8;
  return geometry.group_inputs() == 1 && geometry.taps() <= 9 && geometry.strides[0] == 1 &&
         geometry.strides[1] == 1;
}

constexpr const char* kLoads = "an Intel CPU with AVX-512 FP16";
bool suits_loads(const CondensedView&, const ConvGeometry&) { return broadcasts_from_memory(); }

constexpr const char* kWholeDepthwise = "depthwise with a weight at every place of every filter";

template <const DirectConvOps& kOps>
std::unique_ptr<ConvKernel> pack_direct(const CondensedView& view, const ConvGeometry& geometry,
                                        const Executor&) {
  return pack_direct_conv(view, geometry, kOps);
}

template <const DepthwiseConvOps& kOps>
std::unique_ptr<ConvKernel> pack_depthwise(const CondensedView& view, const ConvGeometry& geometry,
                                           const Executor&) {
  return pack_depthwise_conv(view, geometry, kOps);
}

template <const PanelConvOps& kOps>
std::unique_ptr<ConvKernel> pack_panels(const CondensedView& view, const ConvGeometry& geometry,
                                        const Executor& executor) {
  return pack_panel_conv(view, geometry, kOps, executor);
}

// The rows of an instruction set with vectors, in order of preference.
template <const DepthwiseConvOps& kDepthwise, const DirectConvOps& kDirect,
          const PanelConvOps& kPanel>
void add_rows(Isa isa, const std::string& depthwise, const std::string& panel,
              std::vector<ConvKernelRow>& rows) {
  const auto name = [isa](const std::string& layout) {
    return "f32-conv-" + layout + "-" + isa_name(isa);
  };
  rows.push_back({name("direct"), isa, kFewWeights, has_few_weights, kLargePixels, 1, kMaxTaps, 0.0,
                  pack_direct<kDirect>});
  rows.push_back({name(depthwise), isa, kWholeDepthwise, is_whole_depthwise, 0, 1, kMaxTaps, 0.0,
                  pack_depthwise<kDepthwise>});
  rows.push_back({name("direct"), isa, kFewChannels, has_few_channels, 0, 1, kMaxTaps, 0.0,
                  pack_direct<kDirect>});
  rows.push_back({name(panel), isa, "", nullptr, 0, kMinGroupOutputs, kMaxTaps, kMinDensity,
                  pack_panels<kPanel>});
}

std::vector<ConvKernelRow> make_table() {
  std::vector<ConvKernelRow> rows;
#if defined(__x86_64__)
  add_rows<kDepthwiseConv16Avx512f, kDirectConvAvx512f, kPanelConv32Avx512f>(
      Isa::kAvx512f, "depthwise16", "panel32", rows);
  // Before the other panel.
  rows.insert(rows.end() - 1,
              {"f32-conv-panel32loads-avx512f", Isa::kAvx512f, kLoads, suits_loads, 0,
               kMinGroupOutputs, kMaxTaps, kMinDensity, pack_panels<kPanelConv32LoadsAvx512f>});
  add_rows<kDepthwiseConv8Avx2, kDirectConvAvx2, kPanelConv16Avx2>(Isa::kAvx2, "depthwise8",
                                                                   "panel16", rows);
#elif defined(__aarch64__)
  add_rows<kDepthwiseConv4Neon, kDirectConvNeon, kPanelConv16Neon>(Isa::kNeon, "depthwise4",
                                                                   "panel16", rows);
#endif
  rows.push_back(
      {"f32-conv-taps-scalar", Isa::kScalar, "", nullptr, 0, 1, kAny, 0.0, pack_taps_conv});
  return rows;
}

bool fits(const ConvKernelRow& row, Isa isa, int64_t pixels, const CondensedView& view,
          const ConvGeometry& geometry) {
  const double density = view.density();
  return includes(isa, row.isa) && row.min_pixels <= pixels &&
         row.min_group_outputs <= geometry.group_outputs() && geometry.taps() <= row.max_taps &&
         row.min_density <= density && (!row.fits || row.fits(view, geometry));
}

}  // namespace

const std::vector<ConvKernelRow>& conv_kernel_table() {
  // Never destroyed, like the other table.
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
