#include "kernels/dispatch.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/dispatch_find.h"
#include "kernels/panel_gemm.h"
#include "kernels/panel_tables.h"
#include "kernels/rows_gemm.h"
#include "kernels/window_gemm.h"
#include "kernels/window_tables.h"

namespace fanin {
namespace {

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

template <const WindowOps& kOps>
std::unique_ptr<GemmKernel> pack_window(const CondensedView& view, const Executor& executor) {
  return pack_window_gemm(view, kOps, executor);
}

template <const WindowOps (&kOps)[kFloatTypes], ValueType kWeights>
std::unique_ptr<GemmKernel> pack_window_of(const CondensedView& view, const Executor& executor) {
  return pack_window_gemm(view, kOps[static_cast<size_t>(kWeights)], executor);
}

template <const PanelOps& kOps>
std::unique_ptr<GemmKernel> pack_panels(const CondensedView& view, const Executor& executor) {
  return pack_panel_gemm(view, kOps, executor);
}

// The batches and densities for which a layout is chosen. Measured, since the faster layout differs
// from CPU to CPU.
//
// Below the least density, a window holds so few weights that a step is mostly padding; in a panel,
// most rows have no weight in a segment, so that the cost of packing and running grows with the
// columns instead of the weights (77 s to pack 3,000 weights over 2^31 columns).
struct Limits {
  const char* layout;  // with its instruction set
  BatchRange batches;
  BatchRange batches_16_bit;
  double min_density;
};

constexpr Limits kLimits[] = {
#include "kernels/dispatch_limits.inc"
};

const Limits& limits_of(const std::string& layout) {
  for (const Limits& limits : kLimits)
    if (layout == limits.layout) return limits;
  throw std::logic_error("kernels/dispatch_limits.inc lacks " + layout);
}

using Pack = std::unique_ptr<GemmKernel>(const CondensedView& view, const Executor& executor);

// Collects rows with the limits of their layout, and composes their names.
class Table {
 public:
  // A layout of float32 weights; other types are widened.
  void widening(const std::string& layout, Isa isa, Pack* pack) {
    const Limits& limits = limits_of(layout + "-" + isa_name(isa));
    add(layout, isa, ValueType::kFloat32, limits.batches, limits.min_density, pack);
  }

  // The same for some of the CPUs that have the instruction set.
  void widening_if(bool suits_cpu, const std::string& layout, Isa isa, Pack* pack) {
    widening(layout, isa, pack);
    rows.back().suits_cpu = suits_cpu;
  }

  // A window layout for each type of weights.
  template <const WindowOps (&kOps)[kFloatTypes]>
  void windows(const std::string& layout, Isa isa) {
    add_windows<kOps>(layout, isa, limits_of(layout + "-" + isa_name(isa)));
  }

  // Never dispatched: tests force it by name.
  template <const WindowOps (&kOps)[kFloatTypes]>
  void test_windows(const std::string& layout, Isa isa) {
    add_windows<kOps>(layout, isa, {"", {1, 0}, {1, 0}, 0.0});
  }

  // A layout of pairs of bfloat16, for some of the CPUs that have the instruction set.
  void pairs_if(bool suits_cpu, const std::string& layout, Isa isa, Pack* pack) {
    const Limits& limits = limits_of(layout + "-" + isa_name(isa));
    add(layout, isa, ValueType::kBfloat16, limits.batches_16_bit, limits.min_density, pack);
    KernelRow& row = rows.back();
    row.name = "bf16-gemm-" + layout + "-" + isa_name(isa);
    row.compute = ValueType::kBfloat16;
    row.suits_cpu = suits_cpu;
  }

  // For any layer and batch that no other row serves.
  void rest(const std::string& layout, Isa isa, Pack* pack) {
    add(layout, isa, ValueType::kFloat32, {1, kAny}, 0.0, pack);
  }

  std::vector<KernelRow> rows;

 private:
  // Rows of 16-bit weights come first, since a float32 layout serves every layer.
  template <const WindowOps (&kOps)[kFloatTypes]>
  void add_windows(const std::string& layout, Isa isa, const Limits& limits) {
    constexpr ValueType k16 = ValueType::kFloat16, kB16 = ValueType::kBfloat16;
    add(layout, isa, k16, limits.batches_16_bit, limits.min_density, pack_window_of<kOps, k16>);
    add(layout, isa, kB16, limits.batches_16_bit, limits.min_density, pack_window_of<kOps, kB16>);
    add(layout, isa, ValueType::kFloat32, limits.batches, limits.min_density,
        pack_window_of<kOps, ValueType::kFloat32>);
  }

  void add(const std::string& layout, Isa isa, ValueType weights, BatchRange batches,
           double min_density, Pack* pack) {
    static constexpr const char* kWeights[kFloatTypes] = {"", "f16w-", "bf16w-"};
    rows.push_back({std::string("f32-") + kWeights[static_cast<size_t>(weights)] + "gemm-" +
                        layout + "-" + isa_name(isa),
                    isa, weights, ValueType::kFloat32, batches, 0, kAny, min_density, 1.0, true,
                    pack});
  }
};

// Rows of a higher instruction set come first. Within one, layouts for a static batch precede those
// that must serve a range from 1 on. Small batches run windows, which read the weights once for up
// to four samples; larger ones run panels.
std::vector<KernelRow> make_table() {
  Table table;
#if defined(__x86_64__)
  // Intel's dot products and shuffles take longer than the loads and multiply-adds of panel32loads:
  // 1.8 times below 16 samples, from there 1.4 times at 80 % and 1.1 at 95 % (a Xeon with AMX).
  table.pairs_if(!broadcasts_from_memory(), "pairs32", Isa::kAvx512bf16,
                 pack_panels<kPairs32Avx512bf16>);
  table.windows<kWindow126Avx512vbmi>("window126", Isa::kAvx512vbmi);
  // The code of AVX-512F. With several samples or 16-bit weights it is faster than the wider
  // window.
  table.windows<kWindow63Avx512f>("window63", Isa::kAvx512bw);
  table.widening("window124", Isa::kAvx512bw, pack_window<kWindow124Avx512bw>);
  table.windows<kWindow63Avx512f>("window63", Isa::kAvx512f);
  table.widening_if(broadcasts_from_memory(), "panel32loads", Isa::kAvx512f,
                    pack_panels<kPanel32LoadsAvx512f>);
  table.widening("panel32", Isa::kAvx512f, pack_panels<kPanel32Avx512f>);
  table.windows<kWindow32Avx2>("window32", Isa::kAvx2);
  table.widening("panel16", Isa::kAvx2, pack_panels<kPanel16Avx2>);
  table.test_windows<kWindow126EmulatedAvx512bw>("window126emulated", Isa::kAvx512bw);
#elif defined(__aarch64__)
  table.windows<kWindow64Neon>("window64", Isa::kNeon);
  table.widening("panel16", Isa::kNeon, pack_panels<kPanel16Neon>);
#endif
  table.rest("rows", Isa::kScalar, pack_rows_gemm);
  return std::move(table.rows);
}

bool takes(const KernelRow& row, const CondensedView& view) {
  return (row.weights == ValueType::kFloat32 || row.weights == view.value_type) &&
         (row.compute == ValueType::kFloat32 || row.compute == view.compute);
}

bool fits(const KernelRow& row, Isa isa, int64_t batch, const CondensedView& view) {
  const double density = view.density();
  return row.suits_cpu && includes(isa, row.isa) && takes(row, view) && row.batches.min <= batch &&
         batch <= row.batches.max && row.min_fan_in <= view.fan_in &&
         view.fan_in <= row.max_fan_in && row.min_density <= density && density <= row.max_density;
}

}  // namespace

const std::vector<KernelRow>& kernel_table() {
  // Never destroyed, since sessions may be created and run while the process exits.
  static const auto& table = *new std::vector<KernelRow>(make_table());
  return table;
}

const KernelRow& select_kernel(Isa isa, int64_t batch, const CondensedView& view) {
  return first_row(kernel_table(),
                   [&](const KernelRow& row) { return fits(row, isa, batch, view); });
}

int64_t last_batch(const KernelRow& row, Isa isa, int64_t first, const CondensedView& view) {
  return last_batch_of(kernel_table(), row, first, [&](const KernelRow& preferred, int64_t batch) {
    return fits(preferred, isa, batch, view);
  });
}

const KernelRow& find_kernel(const std::string& name, const CondensedView& view) {
  const KernelRow& row = find_row(kernel_table(), name);
  if (!takes(row, view) && row.compute != view.compute)
    throw std::invalid_argument("kernel '" + name + "' computes in " +
                                value_type_name(row.compute) + ", the layer in " +
                                value_type_name(view.compute));
  if (!takes(row, view))
    throw std::invalid_argument("kernel '" + name + "' takes " + value_type_name(row.weights) +
                                " values, the layer has " + value_type_name(view.value_type));
  return row;
}

}  // namespace fanin
