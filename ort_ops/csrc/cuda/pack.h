// Packing for one kernel of the dispatch table, for tests and benchmarks.
#pragma once

#include <memory>
#include <string>

#include "cuda/conv.h"
#include "cuda/gemm.h"

namespace fanin::cuda {

// As PackedGemm::pack, but with the kernel of that name for every batch. Throws
// std::invalid_argument if the table lacks the name or the row is for other activations.
std::unique_ptr<PackedGemm> pack_kernel(const CondensedView& view, BatchRange batches,
                                        ValueType activations, int device,
                                        const std::string& kernel);

// The same for PackedConv::pack and a row of CondensedConv.
std::unique_ptr<PackedConv> pack_conv_kernel(const CondensedView& view,
                                             const ConvGeometry& geometry, ValueType activations,
                                             int device, const std::string& kernel);

}  // namespace fanin::cuda
