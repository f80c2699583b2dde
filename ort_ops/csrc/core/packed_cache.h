// One packed copy per layout and content in a process, however many sessions hold it.
#pragma once

#include <cstdint>
#include <memory>

#include "core/condensed.h"
#include "core/conv_geometry.h"
#include "core/executor.h"
#include "kernels/conv_dispatch.h"
#include "kernels/dispatch.h"

namespace fanin {

// Of the bytes of the four arrays. Says where to look, never that two layers are equal.
uint64_t content_hash(const CondensedView& view);

// The same for a convolution; no layout depends on the input's size, so sessions of other sizes
// share.
uint64_t content_hash(const CondensedView& view, const ConvGeometry& geometry);

template <typename Kernel>
struct Cached {
  std::shared_ptr<const Kernel> kernel;
  bool shared;  // somebody else had it packed
};
using CachedKernel = Cached<GemmKernel>;

// The sound view packed by `row` of the kernel table for the executor's number of threads; `hash`
// is its content_hash. A copy for as many threads that is alive is shared if it holds the view's
// weights bit for bit, which it is asked for itself (GemmKernel::holds): the arrays that it was
// packed from may be gone. It is freed with its last owner. Threads that ask for the same layer at
// the same time pack it once; the others wait. Throws std::bad_alloc.
CachedKernel packed_kernel(const KernelRow& row, const CondensedView& view, uint64_t hash,
                           const Executor& executor);

// Likewise for a convolution.
Cached<ConvKernel> packed_conv_kernel(const ConvKernelRow& row, const CondensedView& view,
                                      const ConvGeometry& geometry, uint64_t hash,
                                      const Executor& executor);

}  // namespace fanin
