// The table that decides which kernel runs on a GPU, for both ops: data that builds without CUDA
// know, too, so that Python can print it.
#pragma once

#include <vector>

#include "core/gemm.h"
#include "core/value_type.h"

namespace fanin::cuda {

enum class Op { kGemm, kConv };
enum class Layout { kStream, kPanel, kDirect };

// "CondensedGemm"
const char* op_name(Op op);

// "stream"
const char* layout_name(Layout layout);

struct KernelRow {
  const char* name;  // dtype of the activations, op, layout
  Op op;
  Layout layout;
  ValueType activations;
  BatchRange batches;  // that the table gives it; right for every batch
  // Samples of x that must fit the shared memory of a block, 0 for none. Where fewer fit, the
  // weights would be read again for each: the row then serves only as many samples as fit, and at
  // least one.
  int64_t shared_samples;
};

// Every kernel, the preferred first.
const std::vector<KernelRow>& kernel_table();

}  // namespace fanin::cuda
