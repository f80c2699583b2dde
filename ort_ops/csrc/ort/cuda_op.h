// What the ops for CUDA have in common (docs/op.md).
#pragma once

#include <new>
#include <string>
#include <vector>

#include "core/gemm.h"
#include "ort/condensed_op.h"
#include "ort/kernel_info.h"
#include "ort/node_inputs.h"
#include "ort/status.h"

namespace fanin::ort {

// Makes an op one of the CUDA provider, whose weights stay on the host, where packing reads them: a
// run needs none of them.
void set_cuda(OrtCustomOp& op);

// A constant's first element, wherever the runtime put it. Only at creation.
float constant_scalar(const Tensor& tensor);

// The device of the session's CUDA provider, which is that of its allocator. The runtime must have
// API 18.
int device_of(const Runtime& runtime, const OrtKernelInfo* info);

// Refuses weights that are not constant; `names` as in "values, bias", empty for none.
void refuse_variable_weights(const std::string& names);

// A constant weight that packing can read. The ops ask for their weights on the host.
const OrtValue* host_constant(const Runtime& runtime, const KernelInfo& info, Input index);

// Whether the residual is added, see adds_residual. A run never reads the residual on the host,
// which would wait for the device. So a residual that stands for none must be a constant, whose 0
// was seen at creation; any other is refused.
bool adds_residual_on_device(const Shape& residual, const Shape& y, bool is_constant);

// The line of the log about a packed layer.
void log_packed(const KernelInfo& info, const std::string& node,
                const std::vector<PackedInfo>& layouts, int device);

// pack(), with an error that keeps the sentence of a std::bad_alloc, which guarded() would drop.
template <typename Pack>
auto packed_on(int device, const Pack& pack) {
  try {
    return pack();
  } catch (const std::bad_alloc& error) {
    throw Error(kFail, "out of memory on device " + std::to_string(device) + ": " + error.what());
  }
}

}  // namespace fanin::ort
