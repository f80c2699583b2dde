#include "kernels/quantized_dispatch.h"

#include <limits>

#include "kernels/dispatch_find.h"
#include "kernels/quantized_panel.h"
#include "kernels/quantized_panel_tables.h"
#include "kernels/quantized_rows.h"
#include "kernels/quantized_window_tables.h"
#include "kernels/quantized_windows.h"

namespace fanin {
namespace {

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

template <const QuantizedWindowOps& kOps>
std::unique_ptr<QuantizedKernel> pack_windows(const CondensedView& view, const Executor& executor) {
  return pack_quantized_window_gemm(view, kOps, executor);
}

template <const QuantizedPanelOps& kOps>
std::unique_ptr<QuantizedKernel> pack_panels(const CondensedView& view, const Executor& executor) {
  return pack_quantized_panel_gemm(view, kOps, executor);
}

// Weights whose layout with a window of 128 columns takes more than 1.5 MB, so that it does not
// stay in L2 beside x and other layers.
constexpr int64_t kManyWeights = 640 * 1024;

// Below this density, a step of a window has four weights of 128 or fewer.
constexpr double kWindowDensity = 0.002;

// The same for windows of 32 columns, where other layouts take no more time.
constexpr double kNarrowDensity = 0.01;

// Below this density, segments of a panel are nearly empty, see dispatch.cc.
constexpr double kPanelDensity = 0.00003;

// One sample reads each weight once, so the layout with the fewest bytes wins; more samples share
// what is read, so that the one with the fewest instructions does.
std::vector<QuantizedKernelRow> make_table() {
  std::vector<QuantizedKernelRow> rows;
  const auto add = [&rows](const char* name, Isa isa, BatchRange batches, double density,
                           auto pack) { rows.push_back({name, isa, batches, 0, density, pack}); };
#if defined(__x86_64__)
  // Zen 4: see docs/kernels.md. One sample is bound by bytes, of which the widest window has least;
  // with more, a lookup in two registers and its dot product take 1.5 times as long as with one.
  const auto add_zen4 = [&rows](const char* name, BatchRange batches, bool fixed, auto pack) {
    rows.push_back({name, Isa::kAvx512vbmi, batches, 0, kWindowDensity, pack, true, fixed});
  };
  add_zen4("i8-gemm-window256nofetch-avx512vbmi", {1, 1}, false,
           pack_windows<kQuantizedWindow256NofetchAvx512vbmi>);
  add_zen4("i8-gemm-window128two-avx512vbmi", {2, 2}, true,
           pack_windows<kQuantizedWindow128TwoAvx512vbmi>);
  add_zen4("i8-gemm-window64four-avx512vbmi", {3, 4}, true,
           pack_windows<kQuantizedWindow64FourAvx512vbmi>);
  constexpr Isa kVbmi = Isa::kAvx512vbmi, kVnni = Isa::kAvx512vnni, kAvxvnni = Isa::kAvxvnni;
  rows.push_back({"i8-gemm-window256-avx512vbmi",
                  kVbmi,
                  {1, 1},
                  kManyWeights,
                  kWindowDensity,
                  pack_windows<kQuantizedWindow256Avx512vbmi>});
  add("i8-gemm-window128-avx512vbmi", kVbmi, {1, 1}, kWindowDensity,
      pack_windows<kQuantizedWindow128Avx512vbmi>);
  add("i8-gemm-window64-avx512vbmi", kVbmi, {2, kAny}, kWindowDensity,
      pack_windows<kQuantizedWindow64Avx512vbmi>);
  add("i8-gemm-window128pairs-avx512vnni", kVnni, {1, 16}, kWindowDensity,
      pack_windows<kQuantizedWindow128PairsAvx512vnni>);
  add("i8-gemm-quads64-avx512vnni", kVnni, {1, kAny}, kPanelDensity,
      pack_panels<kQuantizedQuads64Avx512vnni>);
  add("i8-gemm-window32quads-avxvnni", kAvxvnni, {1, 3}, kNarrowDensity,
      pack_windows<kQuantizedWindow32QuadsAvxvnni>);
  add("i8-gemm-quads32-avxvnni", kAvxvnni, {1, kAny}, kPanelDensity,
      pack_panels<kQuantizedQuads32Avxvnni>);
  add("i8-gemm-window32quads-avx2", Isa::kAvx2, {1, 1}, kNarrowDensity,
      pack_windows<kQuantizedWindow32QuadsAvx2>);
  add("i8-gemm-panel32-avx512bw", Isa::kAvx512bw, {1, kAny}, kPanelDensity,
      pack_panels<kQuantizedPanel32Avx512bw>);
  add("i8-gemm-panel16-avx2", Isa::kAvx2, {1, kAny}, kPanelDensity,
      pack_panels<kQuantizedPanel16Avx2>);
#elif defined(__aarch64__)
  add("i8-gemm-window64-dotprod", Isa::kDotprod, {1, 2}, kWindowDensity,
      pack_windows<kQuantizedWindow64Dotprod>);
  add("i8-gemm-quads16-dotprod", Isa::kDotprod, {1, kAny}, kPanelDensity,
      pack_panels<kQuantizedQuads16Dotprod>);
  add("i8-gemm-window64-neon", Isa::kNeon, {1, 2}, kWindowDensity,
      pack_windows<kQuantizedWindow64Neon>);
  add("i8-gemm-panel16-neon", Isa::kNeon, {1, kAny}, kPanelDensity,
      pack_panels<kQuantizedPanel16Neon>);
#endif
  rows.push_back({"i8-gemm-rows-scalar", Isa::kScalar, {1, kAny}, 0, 0.0, pack_quantized_rows});
  return rows;
}

bool fits(const QuantizedKernelRow& row, const QuantizedUse& use, int64_t batch,
          const CondensedView& view) {
  const bool fixed = use.batches.min == use.batches.max;
  return row.suits(use.cpu) && (fixed || !row.fixed_batch) && includes(use.isa, row.isa) &&
         row.batches.min <= batch && batch <= row.batches.max &&
         row.min_weights <= view.active * view.fan_in && row.min_density <= view.density();
}

}  // namespace

const std::vector<QuantizedKernelRow>& quantized_kernel_table() {
  // Never destroyed, since sessions may be created and run while the process exits.
  static const auto& table = *new std::vector<QuantizedKernelRow>(make_table());
  return table;
}

const QuantizedKernelRow& select_quantized_kernel(const QuantizedUse& use, int64_t batch,
                                                  const CondensedView& view) {
  return first_row(quantized_kernel_table(),
                   [&](const QuantizedKernelRow& row) { return fits(row, use, batch, view); });
}

int64_t last_quantized_batch(const QuantizedKernelRow& row, const QuantizedUse& use, int64_t first,
                             const CondensedView& view) {
  return last_batch_of(quantized_kernel_table(), row, first,
                       [&](const QuantizedKernelRow& preferred, int64_t batch) {
                         return fits(preferred, use, batch, view);
                       });
}

const QuantizedKernelRow& find_quantized_kernel(const std::string& name) {
  return find_row(quantized_kernel_table(), name);
}

}  // namespace fanin
