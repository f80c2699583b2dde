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
std::unique_ptr<GemmKernel> pack_window(const CondensedView& view, BatchRange) {
  return pack_window_gemm(view, kOps);
}

template <const PanelOps& kOps>
std::unique_ptr<GemmKernel> pack_panels(const CondensedView& view, BatchRange batches) {
  return pack_panel_gemm(view, batches, kOps);
}

// Below this density a window holds so few weights that a step is mostly padding.
constexpr double kMinWindowDensity = 0.004;

std::vector<KernelRow> make_table() {
  std::vector<KernelRow> rows;
#if defined(__x86_64__)
  rows.push_back({"f32-gemm-b1-wordplane62-avx512bw",
                  Isa::kAvx512bw,
                  {1, 8},
                  0,
                  kAny,
                  kMinWindowDensity,
                  1.0,
                  pack_window<kWindowWordPlane62Avx512bw>});
  rows.push_back({"f32-gemm-b1-lanes30-avx512f",
                  Isa::kAvx512f,
                  {1, 8},
                  0,
                  kAny,
                  kMinWindowDensity,
                  1.0,
                  pack_window<kWindowLanes30Avx512f>});
  rows.push_back({"f32-gemm-b1-byteplane32-avx2",
                  Isa::kAvx2,
                  {1, 3},
                  0,
                  kAny,
                  kMinWindowDensity,
                  1.0,
                  pack_window<kWindowBytePlane32Avx2>});
  rows.push_back({"f32-gemm-panel64-avx512f",
                  Isa::kAvx512f,
                  {9, kAny},
                  0,
                  kAny,
                  0.0,
                  1.0,
                  pack_panels<kPanel64Avx512f>});
  rows.push_back({"f32-gemm-panel16-avx2",
                  Isa::kAvx2,
                  {4, kAny},
                  0,
                  kAny,
                  0.0,
                  1.0,
                  pack_panels<kPanel16Avx2>});
#endif
  rows.push_back({"f32-gemm-rows-scalar", Isa::kScalar, {1, kAny}, 0, kAny, 0.0, 1.0, pack_rows});
  return rows;
}

bool fits(const KernelRow& row, Isa isa, int64_t batch, const CondensedView& view) {
  const double density = static_cast<double>(view.fan_in) / static_cast<double>(view.in_features);
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
