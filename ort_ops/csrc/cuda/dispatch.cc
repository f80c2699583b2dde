#include "cuda/dispatch.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace fanin::cuda {
namespace {

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
// Measured on an H200, see docs/cuda.md.
constexpr BatchRange kFew{1, 16};
constexpr BatchRange kMany{17, kAny};
constexpr int64_t kWholeGroup = 8;  // of samples that the stream kernel stages

}  // namespace

const char* layout_name(Layout layout) { return layout == Layout::kStream ? "stream" : "panel"; }

const std::vector<KernelRow>& kernel_table() {
  static const auto& table = *new std::vector<KernelRow>{
      // never destroyed
      {"f32-gemm-stream-cuda", Layout::kStream, ValueType::kFloat32, kFew},
      {"f16-gemm-stream-cuda", Layout::kStream, ValueType::kFloat16, kFew},
      {"bf16-gemm-stream-cuda", Layout::kStream, ValueType::kBfloat16, kFew},
      {"f32-gemm-panel32-cuda", Layout::kPanel, ValueType::kFloat32, kMany},
      {"f16-gemm-panel64-cuda", Layout::kPanel, ValueType::kFloat16, kMany},
      {"bf16-gemm-panel64-cuda", Layout::kPanel, ValueType::kBfloat16, kMany},
  };
  return table;
}

int64_t last_batch(const KernelRow& row, int64_t in_features, const DeviceLimits& limits) {
  if (row.layout == Layout::kPanel) return row.batches.max;
  const int64_t samples =
      in_features <= 65536 ? stageable_samples(in_features, row.activations, limits) : 0;
  return samples == kWholeGroup ? row.batches.max : std::max<int64_t>(1, samples);
}

const KernelRow& select_kernel(ValueType activations, int64_t batch, int64_t in_features,
                               const DeviceLimits& limits) {
  const std::vector<KernelRow>& table = kernel_table();
  return *std::find_if(table.begin(), table.end(), [&](const KernelRow& row) {
    return row.activations == activations && batch <= last_batch(row, in_features, limits);
  });
}

const KernelRow& find_kernel(const std::string& name, ValueType activations) {
  for (const KernelRow& row : kernel_table())
    if (row.name == name && row.activations == activations) return row;
  throw std::invalid_argument("the CUDA kernel table has no " + name + " for " +
                              value_type_name(activations) + " activations");
}

}  // namespace fanin::cuda
