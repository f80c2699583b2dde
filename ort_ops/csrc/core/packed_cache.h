// One packed copy per layout and content in a process, however many sessions use it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/condensed.h"
#include "core/conv_geometry.h"
#include "core/executor.h"
#include "kernels/conv_dispatch.h"
#include "kernels/dispatch.h"
#include "kernels/quantized_conv_dispatch.h"
#include "kernels/quantized_dispatch.h"

namespace fanin {

// A hash of the bytes of the layer's arrays. It finds candidates; it does not prove equality.
uint64_t content_hash(const CondensedView& view);

// The same for a convolution; no layout depends on the input's size, so sessions of other sizes
// share.
uint64_t content_hash(const CondensedView& view, const ConvGeometry& geometry);

template <typename Kernel>
struct Cached {
  std::shared_ptr<const Kernel> kernel;
  bool shared;     // packed before, by another live owner
  double seconds;  // see PackedInfo

  PackedInfo info(const std::string& name, BatchRange batches, PixelRange pixels) const {
    const LayoutInfo layout = kernel->info();
    return {name, batches, pixels, layout.bytes, layout.padding, layout.remainder, shared, seconds};
  }
};
using CachedKernel = Cached<GemmKernel>;

// The valid view, packed by `row` of the kernel table for the executor's number of threads; `hash`
// is its content_hash. A live copy for the same number of threads is shared if it holds the view's
// weights bit for bit. The copy itself is compared with the view (GemmKernel::holds), since the
// arrays that it was packed from may be gone. It is freed with its last owner. If several threads
// request the same layer at the same time, one packs it and the others wait. Throws std::bad_alloc.
CachedKernel packed_kernel(const KernelRow& row, const CondensedView& view, uint64_t hash,
                           const Executor& executor);

// The same for a layer of int8 weights.
Cached<QuantizedKernel> packed_quantized_kernel(const QuantizedKernelRow& row,
                                                const CondensedView& view, uint64_t hash,
                                                const Executor& executor);

// The same for a convolution.
Cached<QuantizedConvKernel> packed_quantized_conv_kernel(const QuantizedConvKernelRow& row,
                                                         const CondensedView& view,
                                                         const ConvGeometry& geometry,
                                                         uint64_t hash, const Executor& executor);
Cached<ConvKernel> packed_conv_kernel(const ConvKernelRow& row, const CondensedView& view,
                                      const ConvGeometry& geometry, uint64_t hash,
                                      const Executor& executor);

}  // namespace fanin
