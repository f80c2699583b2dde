// The dispatch table: which kernel serves which batch.
#pragma once

#include <vector>

#include "core/gemm.h"
#include "core/value_type.h"
#include "cuda/plan.h"

namespace fanin::cuda {

enum class Layout { kStream, kPanel };

// "stream"
const char* layout_name(Layout layout);

struct KernelRow {
  const char* name;  // dtype of the activations, op, layout
  Layout layout;
  ValueType activations;
  BatchRange batches;  // that the table gives it; right for every batch
};

const std::vector<KernelRow>& kernel_table();

// The row for a batch of that layer. Where less than a whole group of samples of x fits shared
// memory, the stream kernel would read the weights again for each: it then serves the single
// sample.
const KernelRow& select_kernel(ValueType activations, int64_t batch, int64_t in_features,
                               const DeviceLimits& limits);

// The last batch that the row serves for that layer.
int64_t last_batch(const KernelRow& row, int64_t in_features, const DeviceLimits& limits);

// Throws std::invalid_argument for a name that the table lacks or that is for other activations.
const KernelRow& find_kernel(const std::string& name, ValueType activations);

}  // namespace fanin::cuda
