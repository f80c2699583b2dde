// Addresses of the compiled kernels, for the CUDA runtime's launch functions.
#pragma once

#include "core/value_type.h"
#include "cuda/visit.h"

namespace fanin::cuda {

// __global__ functions that take a DeltaArgs, a StreamArgs, a PanelArgs, an ExpandArgs, a ConvArgs.
const void* delta_kernel_f32(const DeltaKey& key);
const void* delta_kernel_f16(const DeltaKey& key);
const void* delta_kernel_bf16(const DeltaKey& key);
const void* stream_kernel_f32(const StreamKey& key);
const void* stream_kernel_f16(const StreamKey& key);
const void* stream_kernel_bf16(const StreamKey& key);
const void* panel_kernel(ValueType activations, bool vector_x);
const void* expand_kernel_f16(const ExpandKey& key);
const void* expand_kernel_bf16(const ExpandKey& key);
const void* conv_kernel(ValueType activations);

}  // namespace fanin::cuda
