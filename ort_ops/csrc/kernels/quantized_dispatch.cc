#include "kernels/quantized_dispatch.h"

#include <limits>

#include "kernels/dispatch_find.h"
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

// Weights whose layout with a window of 128 columns takes more than 1.5 MB, so that it does not
// stay in L2 beside x and other layers.
constexpr int64_t kManyWeights = 640 * 1024;

// Below this density, a step of 256 bytes has four weights or fewer, and the rows kernel is as
// fast.
constexpr double kMinDensity = 0.002;

// Batch 1 reads each weight once, so the layout with the fewest bytes wins: the wide windows.
std::vector<QuantizedKernelRow> make_table() {
  std::vector<QuantizedKernelRow> rows;
#if defined(__x86_64__)
  constexpr Isa kVbmi = Isa::kAvx512vbmi;
  rows.push_back({"i8-gemm-window256-avx512vbmi",
                  kVbmi,
                  {1, 1},
                  kManyWeights,
                  kMinDensity,
                  pack_windows<kQuantizedWindow256Avx512vbmi>});
  rows.push_back({"i8-gemm-window128-avx512vbmi",
                  kVbmi,
                  {1, 1},
                  0,
                  kMinDensity,
                  pack_windows<kQuantizedWindow128Avx512vbmi>});
  rows.push_back({"i8-gemm-window64-avx512vbmi",
                  kVbmi,
                  {2, kAny},
                  0,
                  kMinDensity,
                  pack_windows<kQuantizedWindow64Avx512vbmi>});
#endif
  rows.push_back({"i8-gemm-rows-scalar", Isa::kScalar, {1, kAny}, 0, 0.0, pack_quantized_rows});
  return rows;
}

bool fits(const QuantizedKernelRow& row, Isa isa, int64_t batch, const CondensedView& view) {
  return includes(isa, row.isa) && row.batches.min <= batch && batch <= row.batches.max &&
         row.min_weights <= view.active * view.fan_in && row.min_density <= view.density();
}

}  // namespace

const std::vector<QuantizedKernelRow>& quantized_kernel_table() {
  // Never destroyed, since sessions may be created and run while the process exits.
  static const auto& table = *new std::vector<QuantizedKernelRow>(make_table());
  return table;
}

const QuantizedKernelRow& select_quantized_kernel(Isa isa, int64_t batch,
                                                  const CondensedView& view) {
  return first_row(quantized_kernel_table(),
                   [&](const QuantizedKernelRow& row) { return fits(row, isa, batch, view); });
}

int64_t last_quantized_batch(const QuantizedKernelRow& row, Isa isa, int64_t first,
                             const CondensedView& view) {
  return last_batch_of(quantized_kernel_table(), row, first,
                       [&](const QuantizedKernelRow& preferred, int64_t batch) {
                         return fits(preferred, isa, batch, view);
                       });
}

const QuantizedKernelRow& find_quantized_kernel(const std::string& name) {
  return find_row(quantized_kernel_table(), name);
}

}  // namespace fanin
