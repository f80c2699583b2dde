#include "ort/threads.h"

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <charconv>
#include <memory>
#include <string_view>
#include <thread>

#include "core/cpu_quota.h"
#include "core/parse_decimal.h"
#include "ort/status.h"

namespace fanin::ort {
namespace {

// ONNX Runtime's own key: whether idle threads of the pool spin. They do unless the value is "0".
constexpr const char* kSpinningKey = "session.intra_op.allow_spinning";

// Costs unless measured. Threads that spin start within a few microseconds, 3 to 5 for 16 of them
// (16 cores of a Xeon); those that sleep have to be woken one by one.
constexpr DispatchCost kSpinning{1.5, 0.15};
constexpr DispatchCost kSleeping{15.0, 1.5};

[[noreturn]] void refuse_entry(const char* key, const std::string& value, const char* wanted) {
  throw Error(kInvalidArgument, std::string("session config entry '") + key + "' is '" + value +
                                    "', it must be " + wanted);
}

int parse_threads(const std::string& value) {
  int threads = 0;
  const char* end = value.data() + value.size();
  const auto [stop, problem] = std::from_chars(value.data(), end, threads);
  if (problem != std::errc() || stop != end || threads < 1)
    refuse_entry(kThreadsKey, value, "a whole number from 1 up");
  return threads;
}

DispatchCost parse_dispatch(const std::string& value) {
  const std::string_view text = value;
  const size_t comma = std::min(text.find(','), text.size());
  const std::optional<double> fixed = parse_decimal(text.substr(0, comma));
  const std::optional<double> per_thread =
      parse_decimal(comma < text.size() ? text.substr(comma + 1) : "");
  if (!fixed || !per_thread || *fixed < 0 || *per_thread < 0)
    refuse_entry(kDispatchKey, value, "two numbers of microseconds from 0 up, as in '3.5,0.2'");
  return {*fixed, *per_thread};
}

// lookup(key) gives the value of a session config entry, or none.
template <typename Lookup>
ThreadSettings read_settings(const Lookup& lookup) {
  ThreadSettings settings;
  if (const std::optional<std::string> value = lookup(kThreadsKey))
    settings.threads = parse_threads(*value);
  if (const std::optional<std::string> value = lookup(kDispatchKey))
    settings.dispatch = parse_dispatch(*value);
  else
    settings.dispatch = lookup(kSpinningKey) == "0" ? kSleeping : kSpinning;
  return settings;
}

}  // namespace

int available_cpus() {
#ifdef __linux__
  // With more CPUs than cpu_set_t's 1024, the mask does not fit: grow until it does.
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

int default_threads() {
  const std::optional<double> quota = cpu_quota();
  const int cpus = available_cpus();
  return quota ? std::clamp(static_cast<int>(std::min(*quota, 1e6)), 1, cpus) : cpus;
}

ThreadSettings settings_of_options(const Runtime& runtime, const OrtSessionOptions* options) {
  return read_settings([&](const char* key) { return config_entry(runtime, options, key); });
}

std::optional<ThreadSettings> settings_of_session(const Runtime& runtime,
                                                  const OrtKernelInfo* info) {
  if (!runtime.has_api_24) return std::nullopt;
  const Api& api = runtime.api;
  OrtKeyValuePairs* raw = nullptr;
  check(api, api.KernelInfo_GetConfigEntries(info, &raw));
  const Owned<OrtKeyValuePairs> entries(
      raw, [&api](OrtKeyValuePairs* pairs) { api.ReleaseKeyValuePairs(pairs); });
  return read_settings([&](const char* key) {
    const char* value = api.GetKeyValue(entries.get(), key);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
}

}  // namespace fanin::ort
