// ai.fanin::CondensedConv before it has a kernel: what its CPU and its CUDA op share.
#pragma once

#include "ort/condensed_op.h"

namespace fanin::ort {

struct ConvOp : CondensedOp {
  ConvOp(const Runtime& runtime, ElementType type);
};

}  // namespace fanin::ort
