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

template <const WindowOps (&kOps)[kValueTypes], ValueType kWeights>
std::unique_ptr<GemmKernel> pack_window_of(const CondensedView& view, const Executor& executor) {
  return pack_window_gemm(view, kOps[static_cast<size_t>(kWeights)], executor);
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

using Pack = std::unique_ptr<GemmKernel>(const CondensedView& view, const Executor& executor);

// Collects rows, with names made of their parts.
class Table {
 public:
  void window(const std::string& layout, Isa isa, ValueType weights, BatchRange batches,
              Pack* pack) {
    add("b1-" + layout, isa, weights, batches, kMinWindowDensity, pack);
  }

  // A window layout for each type of weights. 16-bit ones stand first, since a layout of float32
  // takes every layer.
  template <const WindowOps (&kOps)[kValueTypes]>
  void windows(const std::string& layout, Isa isa, BatchRange batches, BatchRange batches_16_bit) {
    constexpr ValueType k16 = ValueType::kFloat16, kB16 = ValueType::kBfloat16;
    window(layout, isa, k16, batches_16_bit, pack_window_of<kOps, k16>);
    window(layout, isa, kB16, batches_16_bit, pack_window_of<kOps, kB16>);
    window(layout, isa, ValueType::kFloat32, batches, pack_window_of<kOps, ValueType::kFloat32>);
  }

  // For any batch.
  void general(const std::string& layout, Isa isa, double min_density, Pack* pack) {
    add(layout, isa, ValueType::kFloat32, {1, kAny}, min_density, pack);
  }

  std::vector<KernelRow> rows;

 private:
  void add(const std::string& layout, Isa isa, ValueType weights, BatchRange batches,
           double min_density, Pack* pack) {
    static constexpr const char* kWeights[kValueTypes] = {"", "f16w-", "bf16w-"};
    rows.push_back({std::string("f32-") + kWeights[static_cast<size_t>(weights)] + "gemm-" +
                        layout + "-" + isa_name(isa),
                    isa, weights, batches, 0, kAny, min_density, 1.0, pack});
  }
};

// Rows of a higher instruction set stand first; among those of one, what is packed for a known
// batch stands before what must serve a range that starts at 1.
//
// Small batches run the window kernels, which read the weights once for up to four samples; from
// the next batch on a panel tile of 8 samples is faster. Cascade Lake, 3072 -> 768 at 90 %: the
// wide window takes 49 us for 1 sample, the narrow one 53 us for 2 and 87 us for 4, a panel tile
// 140-180 us for up to 8; with AVX2 the window takes 83 and 133 us for 1 and 2, a tile 143 us.
std::vector<KernelRow> make_table() {
  Table table;
#if defined(__x86_64__)
  table.windows<kWindowBytePlane126Avx512vbmi>("byteplane126", Isa::kAvx512vbmi, {1, 4}, {1, 4});
  // The code of AVX-512F: of more than one sample or 16-bit weights faster than the wide window.
  table.windows<kWindowLanes63Avx512f>("lanes63", Isa::kAvx512bw, {2, 4}, {1, 4});
  table.window("wordplane124", Isa::kAvx512bw, ValueType::kFloat32, {1, 4},
               pack_window<kWindowWordPlane124Avx512bw>);
  table.windows<kWindowLanes63Avx512f>("lanes63", Isa::kAvx512f, {1, 4}, {1, 4});
  table.general("panel32", Isa::kAvx512f, kMinPanelDensity, pack_panels<kPanel32Avx512f>);
  table.windows<kWindowBytePlane32Avx2>("byteplane32", Isa::kAvx2, {1, 2}, {1, 2});
  table.general("panel16", Isa::kAvx2, kMinPanelDensity, pack_panels<kPanel16Avx2>);
  // For no batch: tests name it.
  table.windows<kWindowBytePlane126EmulatedAvx512bw>("byteplane126emulated", Isa::kAvx512bw, {1, 0},
                                                     {1, 0});
#elif defined(__aarch64__)
  table.windows<kWindowBytePlane64Neon>("byteplane64", Isa::kNeon, {1, 2}, {1, 2});
  table.general("panel16", Isa::kNeon, kMinPanelDensity, pack_panels<kPanel16Neon>);
#endif
  table.general("rows", Isa::kScalar, 0.0, pack_rows);
  return std::move(table.rows);
}

bool takes(const KernelRow& row, const CondensedView& view) {
  return row.weights == ValueType::kFloat32 || row.weights == view.value_type;
}

bool fits(const KernelRow& row, Isa isa, int64_t batch, const CondensedView& view) {
  // With padding, a row can hold more entries than there are inputs.
  const double density = static_cast<double>(std::min(view.fan_in, view.in_features)) /
                         static_cast<double>(view.in_features);
  return row.isa <= isa && takes(row, view) && row.batches.min <= batch &&
         batch <= row.batches.max && row.min_fan_in <= view.fan_in &&
         view.fan_in <= row.max_fan_in && row.min_density <= density && density <= row.max_density;
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

const KernelRow& find_kernel(const std::string& name, const CondensedView& view) {
  const std::vector<Isa> supported = supported_isas();
  std::string known;
  for (const KernelRow& row : kernel_table()) {
    if (name == row.name) {
      if (!takes(row, view))
        throw std::invalid_argument("kernel '" + name + "' takes " + value_type_name(row.weights) +
                                    " values, the layer has " + value_type_name(view.value_type));
      if (std::find(supported.begin(), supported.end(), row.isa) != supported.end()) return row;
      throw std::invalid_argument("kernel '" + name + "' needs " + isa_name(row.isa) +
                                  ", which this CPU lacks");
    }
    known += (known.empty() ? "" : ", ") + row.name;
  }
  throw std::invalid_argument("kernel '" + name + "' is unknown; the table has " + known);
}

}  // namespace fanin
