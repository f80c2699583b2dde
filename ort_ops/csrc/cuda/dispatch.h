// Selects rows of the table for a layer, its batches and a device.
#pragma once

#include <string>
#include <vector>

#include "core/condensed.h"
#include "cuda/kernel_table.h"
#include "cuda/plan.h"

namespace fanin::cuda {

// What the choice depends on, besides batch and device.
struct LayerFacts {
  ValueType activations = ValueType::kFloat32;
  int64_t in_features = 0;
  int64_t out_features = 0;
  int64_t weights = 0;      // stored ones
  bool values_fit = false;  // into the type of the activations, see values_fit

  static LayerFacts of(const CondensedView& view, ValueType activations);
};

// A row, and the batches that it serves.
struct ServedBatches {
  const KernelRow* row;
  BatchRange batches;
};

// The rows of CondensedGemm for a range of batches, by rising batch. `unproven`: whether rows that
// have not run on a device may be taken.
std::vector<ServedBatches> select_kernels(const LayerFacts& layer, BatchRange batches,
                                          const DeviceLimits& limits, bool unproven);

// Whether the expand kernel is faster than those that gather, at the batches of its row.
bool expand_pays(const LayerFacts& layer, const DeviceLimits& limits);

// Why the expand kernel cannot compute a layer, as a sentence; empty if it can.
std::string expand_problem(const LayerFacts& layer, const DeviceLimits& limits);

// Whether the delta kernel is faster than the stream kernel, at the batches of its row.
bool delta_pays(const LayerFacts& layer, const DeviceLimits& limits);

// Why the delta kernel cannot compute a layer, as a sentence; empty if it can.
std::string delta_problem(const LayerFacts& layer, const DeviceLimits& limits);

// Throws std::invalid_argument with that sentence if a row's kernel cannot compute a layer.
void refuse_impossible(const KernelRow& row, const LayerFacts& layer, const DeviceLimits& limits);

// What the environment variable FANIN_CUDA_UNPROVEN says about rows that have not run on a device,
// read at each call: "on", or "off" (the default). Throws std::invalid_argument for anything else.
bool unproven_requested();

// The last batch that the row serves for that layer, see KernelRow::shared_samples.
int64_t last_batch(const KernelRow& row, int64_t in_features, const DeviceLimits& limits);

// The row of CondensedConv.
const KernelRow& select_conv_kernel(ValueType activations);

// The row of CondensedGemm of that name. Throws std::invalid_argument if the table lacks the name
// or the row is for other activations.
const KernelRow& find_kernel(const std::string& name, ValueType activations);

}  // namespace fanin::cuda
