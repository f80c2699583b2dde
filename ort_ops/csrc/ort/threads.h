// How a kernel may use the threads of its session. The runtime tells neither the size of its pool
// nor what it takes to use it, so that whoever makes the session may say so in session config
// entries.
#pragma once

#include <optional>
#include <string>

#include "core/executor.h"
#include "ort/abi.h"
#include "ort/runtime.h"

namespace fanin::ort {

inline constexpr const char* kThreadsKey = "fanin.threads";

// "3.5,0.2": microseconds that it takes to start a run on several threads and to join them, and
// those for each thread.
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

// Threads to use where nothing says how many: the available CPUs, or as many whole ones as the
// process's control group grants the time of, since it is stopped when it uses more.
int default_threads();

// What the session's options say when the library is registered with them. Throws Error for a value
// that is not what its key takes, as settings_of_session does.
ThreadSettings settings_of_options(const Runtime& runtime, const OrtSessionOptions* options);

// What the options of a kernel's session say. None if the runtime is too old to tell (before 1.24).
std::optional<ThreadSettings> settings_of_session(const Runtime& runtime,
                                                  const OrtKernelInfo* info);

}  // namespace fanin::ort
