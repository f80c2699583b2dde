#include "cuda/dispatch.h"

#include <algorithm>
#include <stdexcept>

namespace fanin::cuda {
namespace {

// The first row of an op for which `fits` is true; the end of the table if there is none.
template <typename Fits>
auto find_row(Op op, ValueType activations, const Fits& fits) {
  const std::vector<KernelRow>& table = kernel_table();
  return std::find_if(table.begin(), table.end(), [&](const KernelRow& row) {
    return row.op == op && row.activations == activations && fits(row);
  });
}

}  // namespace

int64_t last_batch(const KernelRow& row, int64_t in_features, const DeviceLimits& limits) {
  if (row.shared_samples == 0) return row.batches.max;
  const int64_t samples = stageable_samples(in_features, row.activations, limits);
  return samples >= row.shared_samples ? row.batches.max : std::max<int64_t>(1, samples);
}

const KernelRow& select_kernel(ValueType activations, int64_t batch, int64_t in_features,
                               const DeviceLimits& limits) {
  return *find_row(Op::kGemm, activations, [&](const KernelRow& row) {
    return batch <= last_batch(row, in_features, limits);
  });
}

const KernelRow& select_conv_kernel(ValueType activations) {
  return *find_row(Op::kConv, activations, [](const KernelRow&) { return true; });
}

const KernelRow& find_kernel(const std::string& name, ValueType activations) {
  const auto found =
      find_row(Op::kGemm, activations, [&](const KernelRow& row) { return row.name == name; });
  if (found != kernel_table().end()) return *found;
  throw std::invalid_argument("the CUDA kernel table has no " + name + " for " +
                              value_type_name(activations) + " activations");
}

}  // namespace fanin::cuda
