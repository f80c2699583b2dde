// What the ops for CPU are told when they are registered, and what their kernels make of it.
#pragma once

#include <optional>
#include <string>

#include "ort/kernel_info.h"
#include "ort/runtime.h"

namespace fanin::ort {

struct CpuSettings {
  std::optional<int> threads;  // the session's, where they are known at registration
  std::string cuda_notice;     // what the log should say about CUDA kernels that should be there
                               // and are not; may be empty
};

// Threads that a kernel may use, at most the CPUs of this process. Throws Error for a setting of
// the session that is no number.
size_t concurrency_of(const Runtime& runtime, const KernelInfo& info, const CpuSettings& settings);

// Why a machine that may have a GPU runs these ops on its CPU: once in a process, not for every
// node.
void tell_cuda_notice_once(const KernelInfo& info, const CpuSettings& settings);

}  // namespace fanin::ort
