// The library's one exported symbol, which ONNX Runtime looks up when it loads the library.
#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "ort/abi.h"
#include "ort/condensed_gemm.h"
#include "ort/runtime.h"
#include "ort/status.h"
#include "ort/threads.h"

namespace fanin::ort {
namespace {

constexpr const char* kDomain = "ai.fanin";

// The ops as one runtime sees them, told one thread count. The runtime keeps pointers to all of it.
struct Domain {
  Domain(const OrtApiBase& base, std::optional<int> session_threads)
      : runtime(Runtime::of(base)),
        threads(session_threads),
        condensed_gemm(runtime, kFloat, threads),
        condensed_gemm_float16(runtime, kFloat16, threads) {
    check(runtime.api, runtime.api.CreateCustomOpDomain(kDomain, &handle));
    check(runtime.api, runtime.api.CustomOpDomain_Add(handle, &condensed_gemm));
    check(runtime.api, runtime.api.CustomOpDomain_Add(handle, &condensed_gemm_float16));
  }

  const Runtime runtime;
  const std::optional<int> threads;
  const CondensedGemmOp condensed_gemm, condensed_gemm_float16;
  OrtCustomOpDomain* handle = nullptr;
};

// One domain serves all sessions with the same thread count: registering again and again does not
// grow the process. They are never freed, since a session may outlive every owner that we could
// name. Runtimes before 1.24 do not tell a kernel its session's settings, so the count travels with
// the op.
OrtCustomOpDomain* domain_for(const OrtApiBase& base, std::optional<int> threads) {
  struct Entry {
    const OrtApiBase* base;
    std::unique_ptr<const Domain> domain;
  };
  static std::mutex mutex;
  static auto& entries = *new std::vector<Entry>();
  const std::lock_guard<std::mutex> lock(mutex);
  for (const Entry& entry : entries)
    if (entry.base == &base && entry.domain->threads == threads) return entry.domain->handle;
  entries.push_back({&base, std::make_unique<const Domain>(base, threads)});
  return entries.back().domain->handle;
}

void register_ops(OrtSessionOptions* options, const OrtApiBase& base) {
  const Runtime runtime = Runtime::of(base);
  std::optional<int> threads = threads_of_options(runtime, options);
  // More than the CPUs are never used; without the cap, each new number would make a domain.
  if (threads) threads = std::min(*threads, available_cpus());
  check(runtime.api, runtime.api.AddCustomOpDomain(options, domain_for(base, threads)));
}

}  // namespace
}  // namespace fanin::ort

extern "C" __attribute__((visibility("default"))) fanin::ort::OrtStatus* RegisterCustomOps(
    fanin::ort::OrtSessionOptions* options, const fanin::ort::OrtApiBase* base) {
  namespace ort = fanin::ort;
  // API 1 is in every runtime; its table is enough to say what is wrong.
  return ort::guarded(ort::Api(base->GetApi(1)), "fanin",
                      [&] { ort::register_ops(options, *base); });
}
