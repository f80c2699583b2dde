// Selects rows of the table for a layer, its batches and a device.
#pragma once

#include <string>
#include <vector>

#include "core/condensed.h"
#include "core/conv_geometry.h"
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

// The same for a convolution.
struct ConvFacts {
  ValueType activations = ValueType::kFloat32;
  ConvGeometry geometry;
  int64_t weights = 0;
  bool values_fit = false;

  static ConvFacts of(const CondensedView& view, const ConvGeometry& geometry,
                      ValueType activations);
};

// Which rows may be taken.
struct Permission {
  bool unproven = false;  // those that have not run on a device
  bool tf32 = false;      // those that round float32 to TF32
};

// A row, and the batches that it serves.
struct ServedBatches {
  const KernelRow* row;
  BatchRange batches;
};

// The rows of CondensedGemm for a range of batches, by rising batch.
std::vector<ServedBatches> select_kernels(const LayerFacts& layer, BatchRange batches,
                                          const DeviceLimits& limits, Permission permission);

// Whether the expand kernel is faster than those that gather, at the batches of its row.
bool expand_pays(const LayerFacts& layer, const DeviceLimits& limits);

// The same for a convolution: windows of 1 x 1 and 3 x 3 whose groups fill the tiles.
bool expand_pays(const ConvFacts& layer, const DeviceLimits& limits);

// Why the expand kernel cannot compute a layer, as a sentence; empty if it can.
std::string expand_problem(const LayerFacts& layer, const DeviceLimits& limits);
std::string expand_problem(const ConvFacts& layer, const DeviceLimits& limits);

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
const KernelRow& select_conv_kernel(const ConvFacts& layer, const DeviceLimits& limits,
                                    Permission permission);

// The row of an op of that name. Throws std::invalid_argument if the table lacks the name or the
// row is for another op or other activations.
const KernelRow& find_kernel(Op op, const std::string& name, ValueType activations);

}  // namespace fanin::cuda
