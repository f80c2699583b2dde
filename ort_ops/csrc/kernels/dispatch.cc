#include "kernels/dispatch.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/gemm_rows.h"
#include "kernels/panel_gemm.h"
#include "kernels/panel_tables.h"
#include "kernels/window_gemm.h"
#include "kernels/window_tables.h"

namespace fanin {
namespace {

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

template <const WindowOps& kOps>
std::unique_ptr<GemmKernel> pack_window(const CondensedView& view, const Executor& executor) {
  return pack_window_gemm(view, kOps, executor);
}

template <const PanelOps& kOps>
std::unique_ptr<GemmKernel> pack_panels(const CondensedView& view, const Executor& executor) {
  return pack_panel_gemm(view, kOps, executor);
}

// Below this density a window holds so few weights that a step is mostly padding.
constexpr double kMinWindowDensity = 0.004;

// Below this density most rows have no weight in a segment of a panel, so that packing and running
// would cost by the columns and not by the weights: 77 s to pack 3,000 weights over 2^31 columns,
// and 10 ms instead of 0.2 ms for one sample of 200,000 -> 4,000 with 20 weights a row.
constexpr double kMinPanelDensity = 5e-5;

// Rows of a higher instruction set stand first; among those of one, what is packed for a known
// batch stands before what must serve a range that starts at 1.
//
// Small batches run the window kernels, which read the weights once for up to four samples; from
// the next batch on a panel tile of 8 samples is faster. Cascade Lake, 3072 -> 768 at 90 %: the
// wide window takes 65 us for 1 sample, the narrow one 98 us for 2 and 123 us for 4, a panel tile
// 140-180 us for up to 8; with AVX2 the window takes 83 and 133 us for 1 and 2, a tile 143 us.
std::vector<KernelRow> make_table() {
  std::vector<KernelRow> rows;
#if defined(__x86_64__)
  const auto window = [&rows](const char* name, Isa isa, BatchRange batches, auto* pack) {
    rows.push_back({name, isa, batches, 1, kAny, kMinWindowDensity, 1.0, pack});
  };
  const auto panel = [&rows](const char* name, Isa isa, BatchRange batches, auto* pack) {
    rows.push_back({name, isa, batches, 1, kAny, kMinPanelDensity, 1.0, pack});
  };
  window("f32-gemm-b1-byteplane126-avx512vbmi", Isa::kAvx512vbmi, {1, 4},
         pack_window<kWindowBytePlane126Avx512vbmi>);
  window("f32-gemm-b1-wordplane62-avx512bw", Isa::kAvx512bw, {2, 4},
         pack_window<kWindowWordPlane62Avx512bw>);
  window("f32-gemm-b1-wordplane124-avx512bw", Isa::kAvx512bw, {1, 4},
         pack_window<kWindowWordPlane124Avx512bw>);
  window("f32-gemm-b1-lanes30-avx512f", Isa::kAvx512f, {1, 4}, pack_window<kWindowLanes30Avx512f>);
  panel("f32-gemm-panel32-avx512f", Isa::kAvx512f, {1, kAny}, pack_panels<kPanel32Avx512f>);
  window("f32-gemm-b1-byteplane32-avx2", Isa::kAvx2, {1, 2}, pack_window<kWindowBytePlane32Avx2>);
  panel("f32-gemm-panel16-avx2", Isa::kAvx2, {1, kAny}, pack_panels<kPanel16Avx2>);
  // For no batch: tests name it.
  window("f32-gemm-b1-byteplane126emulated-avx512bw", Isa::kAvx512bw, {1, 0},
         pack_window<kWindowBytePlane126EmulatedAvx512bw>);
#endif
  rows.push_back({"f32-gemm-rows-scalar", Isa::kScalar, {1, kAny}, 0, kAny, 0.0, 1.0, pack_rows});
  return rows;
}

bool fits(const KernelRow& row, Isa isa, int64_t batch, const CondensedView& view) {
  // With padding, a row can hold more entries than there are inputs.
  const double density = static_cast<double>(std::min(view.fan_in, view.in_features)) /
                         static_cast<double>(view.in_features);
  return row.isa <= isa && row.batches.min <= batch && batch <= row.batches.max &&
         row.min_fan_in <= view.fan_in && view.fan_in <= row.max_fan_in &&
         row.min_density <= density && density <= row.max_density;
}

}  // namespace

const std::vector<KernelRow>& kernel_table() {
  static const std::vector<KernelRow> table = make_table();
  return table;
}

const KernelRow& select_kernel(Isa isa, int64_t batch, const CondensedView& view) {
  for (const KernelRow& row : kernel_table())
    if (fits(row, isa, batch, view)) return row;
  throw std::logic_error("the kernel table has no row for this layer");
}

const KernelRow& find_kernel(const std::string& name) {
  const std::vector<Isa> supported = supported_isas();
  std::string known;
  for (const KernelRow& row : kernel_table()) {
    if (name == row.name) {
      if (std::find(supported.begin(), supported.end(), row.isa) != supported.end()) return row;
      throw std::invalid_argument("kernel '" + name + "' needs " + isa_name(row.isa) +
                                  ", which this CPU lacks");
    }
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  throw std::invalid_argument("kernel '" + name + "' is unknown; the table has " + known);
}

}  // namespace fanin
