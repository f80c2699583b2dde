// Packing for one named kernel of the dispatch table: for tests and benches.
#pragma once

#include <memory>
#include <string>

#include "cuda/gemm.h"

namespace fanin::cuda {

// As PackedGemm::pack, but for every batch the kernel of that name. Throws std::invalid_argument
// for a name that the table lacks or that is for other activations.
std::unique_ptr<PackedGemm> pack_kernel(const CondensedView& view, BatchRange batches,
                                        ValueType activations, int device,
                                        const std::string& kernel);

}  // namespace fanin::cuda
