// The __global__ function around a thread program.
#pragma once

#include "cuda/device_context.h"
#include "cuda/visit.h"

namespace fanin::cuda {

template <typename Program, typename Args>
__global__ void __launch_bounds__(Program::kMaxThreads, Program::kMinBlocks)
    run_program(const __grid_constant__ Args args) {
  Program::run(DeviceContext(), args);
}

template <typename Program, typename Args>
const void* address_of() {
  return reinterpret_cast<const void*>(&run_program<Program, Args>);
}

template <typename X>
const void* stream_kernel_of(const StreamKey& key) {
  return visit_stream<X>(key, [](auto kernel) {
    return address_of<typename decltype(kernel)::Program, StreamArgs>();
  });
}

template <typename X>
const void* delta_kernel_of(const DeltaKey& key) {
  return visit_delta<X>(
      key, [](auto kernel) { return address_of<typename decltype(kernel)::Program, DeltaArgs>(); });
}

template <typename X>
const void* expand_kernel_of(const ExpandKey& key) {
  return visit_expand<X>(key, [](auto kernel) {
    return address_of<typename decltype(kernel)::Program, ExpandArgs>();
  });
}

}  // namespace fanin::cuda
