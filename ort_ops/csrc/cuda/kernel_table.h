// The dispatch table of both ops on a GPU. Builds without CUDA include it as well, so that Python
// can return it.
#pragma once

#include <vector>

#include "core/gemm.h"
#include "core/value_type.h"

namespace fanin::cuda {

enum class Op { kGemm, kConv };
enum class Layout { kExpand, kDelta, kStream, kPanel, kDirect };

// "CondensedGemm"
const char* op_name(Op op);

// "stream"
const char* layout_name(Layout layout);

struct KernelRow {
  const char* name;  // dtype of the activations, op, layout
  Op op;
  Layout layout;
  ValueType activations;
  BatchRange batches;  // for which it is chosen; it is correct for every batch
  // Samples of x that must fit into a block's shared memory, 0 for none. If fewer fit, the weights
  // would have to be read several times, so the row then serves only as many samples as fit, but at
  // least one.
  int64_t shared_samples;
  // Whether it has run on a GPU with right results. Others are taken on request only, see
  // dispatch.h.
  bool proven;
};

// Every kernel, in order of preference.
const std::vector<KernelRow>& kernel_table();

}  // namespace fanin::cuda
