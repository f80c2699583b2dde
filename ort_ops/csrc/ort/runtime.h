// The ONNX Runtime that loaded this library. A process may have more than one (Python's and an
// application's).
#pragma once

#include <optional>
#include <string>

#include "ort/abi.h"

namespace fanin::ort {

struct Runtime {
  Api api;
  // A kernel's allocator, which identifies its device; outputs in the memory of inputs.
  bool has_api_18;
  // Slots above kApiVersion exist: a kernel can read its session's configuration and a tensor's
  // shape without allocating.
  bool has_api_24;

  // Throws Error, with a message for the user, if the runtime is older than kApiVersion.
  static Runtime of(const OrtApiBase& base);
};

// The entry of that key in the configuration of session options; none if absent.
std::optional<std::string> config_entry(const Runtime& runtime, const OrtSessionOptions* options,
                                        const char* key);

}  // namespace fanin::ort
