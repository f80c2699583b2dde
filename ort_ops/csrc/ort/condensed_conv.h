// The operator ai.fanin::CondensedConv, version 1, for CPU (docs/op.md).
#pragma once

#include "ort/conv_op.h"
#include "ort/cpu_op.h"

namespace fanin::ort {

// For kFloat or kFloat16.
struct CondensedConvOp : ConvOp {
  CondensedConvOp(const Runtime& runtime, ElementType type, const CpuSettings& settings);

  const CpuSettings settings;
};

}  // namespace fanin::ort
