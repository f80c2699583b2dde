// How many threads a kernel may use. The runtime does not tell the size of its pool, so that
// whoever makes the session may say it with this session config key.
#pragma once

#include <optional>
#include <string>

#include "ort/abi.h"
#include "ort/runtime.h"

namespace fanin::ort {

inline constexpr const char* kThreadsKey = "fanin.threads";

// CPUs that this process may run on (its affinity mask); at least 1.
int available_cpus();

// The value of the key: a whole number from 1 up. Throws Error naming the key and the value.
int parse_threads(const std::string& value);

// The key as it stood in the options when the library was registered with them; none if absent.
std::optional<int> threads_of_options(const Runtime& runtime, const OrtSessionOptions* options);

// The key as it stands in the session of a kernel. None if absent or if the runtime is too old to
// tell (before 1.24).
std::optional<int> threads_of_session(const Runtime& runtime, const OrtKernelInfo* info);

}  // namespace fanin::ort
