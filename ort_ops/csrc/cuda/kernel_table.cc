#include "cuda/kernel_table.h"

#include <limits>

namespace fanin::cuda {
namespace {

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
// Measured on an H200, see docs/cuda.md.
constexpr BatchRange kFew{1, 16};
constexpr BatchRange kMany{17, kAny};
constexpr BatchRange kAll{1, kAny};
// With more samples, dense products are limited by tensor cores, not by reading their weights.
constexpr BatchRange kExpanded{5, 128};
// As many as share a read of the weights.
constexpr BatchRange kFewest{1, 4};

constexpr ValueType kF32 = ValueType::kFloat32;
constexpr ValueType kF16 = ValueType::kFloat16;
constexpr ValueType kBf16 = ValueType::kBfloat16;

}  // namespace

const char* op_name(Op op) { return op == Op::kGemm ? "CondensedGemm" : "CondensedConv"; }

const char* layout_name(Layout layout) {
  switch (layout) {
    case Layout::kExpand:
      return "expand";
    case Layout::kDelta:
      return "delta";
    case Layout::kStream:
      return "stream";
    case Layout::kPanel:
      return "panel";
    default:
      return "direct";
  }
}

const std::vector<KernelRow>& kernel_table() {
  // Never destroyed, like the CPU's.
  static const auto& table = *new std::vector<KernelRow>{
      {"f16-gemm-expand-cuda", Op::kGemm, Layout::kExpand, kF16, kExpanded, 0, false},
      {"bf16-gemm-expand-cuda", Op::kGemm, Layout::kExpand, kBf16, kExpanded, 0, false},
      {"f32-gemm-delta-cuda", Op::kGemm, Layout::kDelta, kF32, kFewest, 4, false},
      {"f16-gemm-delta-cuda", Op::kGemm, Layout::kDelta, kF16, kFewest, 4, false},
      {"bf16-gemm-delta-cuda", Op::kGemm, Layout::kDelta, kBf16, kFewest, 4, false},
      {"f32-gemm-stream-cuda", Op::kGemm, Layout::kStream, kF32, kFew, 8, true},
      {"f16-gemm-stream-cuda", Op::kGemm, Layout::kStream, kF16, kFew, 8, true},
      {"bf16-gemm-stream-cuda", Op::kGemm, Layout::kStream, kBf16, kFew, 8, true},
      {"f32-gemm-panel32-cuda", Op::kGemm, Layout::kPanel, kF32, kMany, 0, true},
      {"f16-gemm-panel64-cuda", Op::kGemm, Layout::kPanel, kF16, kMany, 0, true},
      {"bf16-gemm-panel64-cuda", Op::kGemm, Layout::kPanel, kBf16, kMany, 0, true},
      {"f32-conv-direct-cuda", Op::kConv, Layout::kDirect, kF32, kAll, 0, true},
      {"f16-conv-direct-cuda", Op::kConv, Layout::kDirect, kF16, kAll, 0, true},
      {"bf16-conv-direct-cuda", Op::kConv, Layout::kDirect, kBf16, kAll, 0, true},
  };
  return table;
}

}  // namespace fanin::cuda
