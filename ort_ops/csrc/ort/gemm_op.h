// ai.fanin::CondensedGemm before it has a kernel: what its CPU and its CUDA op share.
#pragma once

#include "ort/condensed_op.h"

namespace fanin::ort {

struct GemmOp : CondensedOp {
  GemmOp(const Runtime& runtime, ElementType type);
};

}  // namespace fanin::ort
