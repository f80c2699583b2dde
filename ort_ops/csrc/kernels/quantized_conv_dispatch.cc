#include "kernels/quantized_conv_dispatch.h"

#include "kernels/dispatch_find.h"
#include "kernels/quantized_conv_strips.h"
#include "kernels/quantized_taps_conv.h"
#include "kernels/quantized_tiles_conv.h"
#include "kernels/quantized_window_conv.h"
#include "kernels/quantized_window_tables.h"

namespace fanin {
namespace {

// Below this density, a step of a window has five weights of 128 or fewer, and copying windows for
// a kernel that skips what no row reads takes less time (on Xeons with AMX).
constexpr double kWindowDensity = 0.003;

// Channels of a group up to which a window of pairs takes half the time of tiles: with all channels
// side by side, tiles hold little that a filter reads. From 32 channels on it takes more.
constexpr int64_t kFewChannels = 16;

// A tile of wider windows would not stay in any cache.
constexpr int64_t kMaxTileColumns = 65536;

bool every_layer(const CondensedView&, const ConvGeometry&) { return true; }

bool fits_windows(const CondensedView& view, const ConvGeometry& geometry) {
  return view.density() >= kWindowDensity && ConvStrips::patch_fits(geometry);
}

bool fits_grouped_windows(const CondensedView& view, const ConvGeometry& geometry) {
  return geometry.group > 1 && geometry.group_inputs() <= kFewChannels &&
         fits_windows(view, geometry);
}

bool fits_tiles(const CondensedView&, const ConvGeometry& geometry) {
  return geometry.taps() <= kMaxTileColumns / geometry.in_channels &&
         ConvStrips::patch_fits(geometry);
}

template <const QuantizedWindowOps& kOps>
std::unique_ptr<QuantizedConvKernel> pack_windows(const CondensedView& view,
                                                  const ConvGeometry& geometry,
                                                  const Executor& executor) {
  return pack_quantized_window_conv(view, geometry, kOps, executor);
}

template <Isa kIsa>
std::unique_ptr<QuantizedConvKernel> pack_tiles(const CondensedView& view,
                                                const ConvGeometry& geometry,
                                                const Executor& executor) {
  return pack_quantized_tiles_conv(view, geometry, kIsa, executor);
}

template <Isa kIsa>
QuantizedConvKernelRow tiles() {
  return {std::string("i8-conv-tiles-") + isa_name(kIsa), kIsa, fits_tiles, pack_tiles<kIsa>};
}

std::vector<QuantizedConvKernelRow> make_table() {
  std::vector<QuantizedConvKernelRow> rows;
#if defined(__x86_64__)
  rows.push_back({"i8-conv-window64-avx512vbmi", Isa::kAvx512vbmi, fits_windows,
                  pack_windows<kQuantizedWindow64Avx512vbmi>});
  rows.push_back({"i8-conv-window128pairs-avx512vnni", Isa::kAvx512vnni, fits_grouped_windows,
                  pack_windows<kQuantizedWindow128PairsAvx512vnni>});
  rows.push_back(tiles<Isa::kAvx512vnni>());
  rows.push_back(tiles<Isa::kAvxvnni>());
  rows.push_back(tiles<Isa::kAvx512bw>());
  rows.push_back(tiles<Isa::kAvx2>());
#elif defined(__aarch64__)
  rows.push_back(tiles<Isa::kDotprod>());
  rows.push_back(tiles<Isa::kNeon>());
#endif
  rows.push_back({"i8-conv-taps-scalar", Isa::kScalar, every_layer, pack_quantized_taps_conv});
  return rows;
}

}  // namespace

const std::vector<QuantizedConvKernelRow>& quantized_conv_kernel_table() {
  // Never destroyed, since sessions may be created and run while the process exits.
  static const auto& table = *new std::vector<QuantizedConvKernelRow>(make_table());
  return table;
}

const QuantizedConvKernelRow& select_quantized_conv_kernel(Isa isa, const CondensedView& view,
                                                           const ConvGeometry& geometry) {
  return first_row(quantized_conv_kernel_table(), [&](const QuantizedConvKernelRow& row) {
    return includes(isa, row.isa) && row.fits(view, geometry);
  });
}

const QuantizedConvKernelRow& find_quantized_conv_kernel(const std::string& name) {
  return find_row(quantized_conv_kernel_table(), name);
}

}  // namespace fanin
