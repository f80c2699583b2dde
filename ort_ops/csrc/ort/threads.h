// The threads that a kernel may use. The runtime discloses neither the size of its pool nor the
// cost of using it, so the application can set both in session config entries.
#pragma once

#include <optional>
#include <string>

#include "core/executor.h"
#include "ort/abi.h"
#include "ort/runtime.h"

namespace fanin::ort {

inline constexpr const char* kThreadsKey = "fanin.threads";

// "3.5,0.2": microseconds for starting and joining several threads, fixed and per thread.
inline constexpr const char* kDispatchKey = "fanin.dispatch";

struct ThreadSettings {
  std::optional<int> threads;
  DispatchCost dispatch;

  bool operator==(const ThreadSettings& other) const {
    return threads == other.threads && dispatch == other.dispatch;
  }
};

// CPUs that this process may run on (its affinity mask); at least 1.
int available_cpus();

// The default number of threads: the available CPUs, or the whole CPUs of the control group's
// quota, since a process that exceeds the quota is stopped.
int default_threads();

// The settings in session options at registration. Throws Error for an invalid value, as
// settings_of_session does.
ThreadSettings settings_of_options(const Runtime& runtime, const OrtSessionOptions* options);

// The settings of a kernel's session. None if the runtime gives no access to them (before 1.24).
std::optional<ThreadSettings> settings_of_session(const Runtime& runtime,
                                                  const OrtKernelInfo* info);

}  // namespace fanin::ort
