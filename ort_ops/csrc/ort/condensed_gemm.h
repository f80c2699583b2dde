// The operator ai.fanin::CondensedGemm, version 1, for CPU (docs/op.md).
#pragma once

#include "ort/cpu_op.h"
#include "ort/gemm_op.h"

namespace fanin::ort {

// For kFloat or kFloat16.
struct CondensedGemmOp : GemmOp {
  CondensedGemmOp(const Runtime& runtime, ElementType type, const CpuSettings& settings);

  const CpuSettings settings;
};

}  // namespace fanin::ort
