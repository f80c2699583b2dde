// The operator ai.fanin::CondensedConv, version 1, for CUDA (docs/op.md).
#pragma once

#include "ort/conv_op.h"

namespace fanin::ort {

// For kFloat, kFloat16 or kBfloat16. The runtime must have API 18.
struct CudaConvOp : ConvOp {
  CudaConvOp(const Runtime& runtime, ElementType type);
};

}  // namespace fanin::ort
