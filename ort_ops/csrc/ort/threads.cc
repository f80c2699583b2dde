#include "ort/threads.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <thread>

#include "ort/status.h"

namespace fanin::ort {

int available_cpus() {
#ifdef __linux__
  // The mask of a machine with more CPUs than cpu_set_t's 1024 does not fit it: grow until it does.
  for (int capacity = CPU_SETSIZE; capacity <= (1 << 20); capacity *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> mask(
        CPU_ALLOC(capacity), [](cpu_set_t* set) { CPU_FREE(set); });
    if (!mask) break;
    const size_t bytes = CPU_ALLOC_SIZE(capacity);
    if (sched_getaffinity(0, bytes, mask.get()) == 0)
      return std::max(1, static_cast<int>(CPU_COUNT_S(bytes, mask.get())));
  }
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int parse_threads(const std::string& value) {
  int threads = 0;
  const char* end = value.data() + value.size();
  const auto [stop, problem] = std::from_chars(value.data(), end, threads);
  if (problem != std::errc() || stop != end || threads < 1) {
    throw Error(kInvalidArgument, std::string("session config entry '") + kThreadsKey + "' is '" +
                                      value + "', it must be a whole number from 1 up");
  }
  return threads;
}

std::optional<int> threads_of_options(const Runtime& runtime, const OrtSessionOptions* options) {
  const std::optional<std::string> value = config_entry(runtime, options, kThreadsKey);
  if (!value) return std::nullopt;
  return parse_threads(*value);
}

std::optional<int> threads_of_session(const Runtime& runtime, const OrtKernelInfo* info) {
  if (!runtime.has_api_24) return std::nullopt;
  const Api& api = runtime.api;
  OrtKeyValuePairs* raw = nullptr;
  check(api, api.KernelInfo_GetConfigEntries(info, &raw));
  const Owned<OrtKeyValuePairs> entries(
      raw, [&api](OrtKeyValuePairs* pairs) { api.ReleaseKeyValuePairs(pairs); });
  const char* value = api.GetKeyValue(entries.get(), kThreadsKey);
  if (value == nullptr) return std::nullopt;
  return parse_threads(value);
}

}  // namespace fanin::ort
