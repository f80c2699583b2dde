#include "cuda/kernel_table.h"

#include <limits>

namespace fanin::cuda {
namespace {

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
// Measured on an H200, see docs/cuda.md.
constexpr BatchRange kFew{1, 16};
constexpr BatchRange kMany{17, kAny};
constexpr BatchRange kAll{1, kAny};

constexpr ValueType kF32 = ValueType::kFloat32;
constexpr ValueType kF16 = ValueType::kFloat16;
constexpr ValueType kBf16 = ValueType::kBfloat16;

}  // namespace

const char* op_name(Op op) { return op == Op::kGemm ? "CondensedGemm" : "CondensedConv"; }

const char* layout_name(Layout layout) {
  switch (layout) {
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
      {"f32-gemm-stream-cuda", Op::kGemm, Layout::kStream, kF32, kFew, 8},
      {"f16-gemm-stream-cuda", Op::kGemm, Layout::kStream, kF16, kFew, 8},
      {"bf16-gemm-stream-cuda", Op::kGemm, Layout::kStream, kBf16, kFew, 8},
      {"f32-gemm-panel32-cuda", Op::kGemm, Layout::kPanel, kF32, kMany, 0},
      {"f16-gemm-panel64-cuda", Op::kGemm, Layout::kPanel, kF16, kMany, 0},
      {"bf16-gemm-panel64-cuda", Op::kGemm, Layout::kPanel, kBf16, kMany, 0},
      {"f32-conv-direct-cuda", Op::kConv, Layout::kDirect, kF32, kAll, 0},
      {"f16-conv-direct-cuda", Op::kConv, Layout::kDirect, kF16, kAll, 0},
      {"bf16-conv-direct-cuda", Op::kConv, Layout::kDirect, kBf16, kAll, 0},
  };
  return table;
}

}  // namespace fanin::cuda
