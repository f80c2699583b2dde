#include "ort/runtime.h"

#include <cstdio>

#include "ort/status.h"

namespace fanin::ort {
namespace {

// onnxruntime 1.N has API N. Requesting a later one from GetApi prints to stderr, so the version
// string is checked first.
bool is_at_least(const char* version, unsigned minor) {
  unsigned found_major = 0, found_minor = 0;
  if (std::sscanf(version, "%u.%u", &found_major, &found_minor) != 2) return false;
  return found_major > 1 || found_minor >= minor;
}

}  // namespace

Runtime Runtime::of(const OrtApiBase& base) {
  const char* version = base.GetVersionString();
  const OrtApi* api = base.GetApi(kApiVersion);
  if (api == nullptr) {
    throw Error(kFail, "fanin's operators need onnxruntime 1." + std::to_string(kApiVersion) +
                           " or newer, this is onnxruntime " + version +
                           "; upgrade it with: pip install --upgrade onnxruntime");
  }
  Runtime runtime{Api(api), false, false};
  const auto reach = [&](uint32_t wanted) {
    const OrtApi* newer = is_at_least(version, wanted) ? base.GetApi(wanted) : nullptr;
    if (newer != nullptr) runtime.api = Api(newer);
    return newer != nullptr;
  };
  runtime.has_api_18 = reach(kAllocatorApiVersion);
  runtime.has_api_24 = reach(kConfigApiVersion);
  return runtime;
}

std::optional<std::string> config_entry(const Runtime& runtime, const OrtSessionOptions* options,
                                        const char* key) {
  const Api& api = runtime.api;
  int found = 0;
  check(api, api.HasSessionConfigEntry(options, key, &found));
  if (!found) return std::nullopt;
  size_t size = 0;
  check(api, api.GetSessionConfigEntry(options, key, nullptr, &size));
  std::string value(size, '\0');
  check(api, api.GetSessionConfigEntry(options, key, value.data(), &size));
  value.resize(size > 0 ? size - 1 : 0);  // without the terminating NUL
  return value;
}

}  // namespace fanin::ort
