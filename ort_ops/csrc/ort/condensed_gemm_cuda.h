// The operator ai.fanin::CondensedGemm, version 1, for CUDA (docs/op.md).
#pragma once

#include "ort/abi.h"
#include "ort/gemm_op.h"
#include "ort/runtime.h"

namespace fanin::ort {

// For kFloat, kFloat16 or kBfloat16. The runtime must have API 18.
struct CudaGemmOp : GemmOp {
  CudaGemmOp(const Runtime& runtime, ElementType type);
};

}  // namespace fanin::ort
