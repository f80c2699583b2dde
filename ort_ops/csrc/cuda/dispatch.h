// Selects a row of the table for a layer, a batch and a device.
#pragma once

#include <string>

#include "cuda/kernel_table.h"
#include "cuda/plan.h"

namespace fanin::cuda {

// The row of CondensedGemm for a batch of that layer.
const KernelRow& select_kernel(ValueType activations, int64_t batch, int64_t in_features,
                               const DeviceLimits& limits);

// The last batch that the row serves for that layer, see KernelRow::shared_samples.
int64_t last_batch(const KernelRow& row, int64_t in_features, const DeviceLimits& limits);

// The row of CondensedConv.
const KernelRow& select_conv_kernel(ValueType activations);

// The row of CondensedGemm of that name. Throws std::invalid_argument if the table lacks the name
// or the row is for other activations.
const KernelRow& find_kernel(const std::string& name, ValueType activations);

}  // namespace fanin::cuda
