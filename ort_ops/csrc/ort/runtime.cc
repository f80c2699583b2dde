#include "ort/runtime.h"

#include <cstdio>

#include "ort/status.h"

namespace fanin::ort {
namespace {

// onnxruntime 1.N offers API N. Asking GetApi for more than there is prints to stderr, so ask the
// version string first.
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
  const bool has_api_24 =
      is_at_least(version, kConfigApiVersion) && base.GetApi(kConfigApiVersion) != nullptr;
  return Runtime{Api(has_api_24 ? base.GetApi(kConfigApiVersion) : api), has_api_24};
}

}  // namespace fanin::ort
