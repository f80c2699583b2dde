#include "kernels/quantized_dispatch.h"

#include <limits>

#include "kernels/dispatch_find.h"
#include "kernels/quantized_rows.h"

namespace fanin {
namespace {

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

std::vector<QuantizedKernelRow> make_table() {
  return {{"i8-gemm-rows-scalar", Isa::kScalar, {1, kAny}, 0, 0.0, pack_quantized_rows}};
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
