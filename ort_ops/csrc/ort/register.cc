// The library's one exported symbol, which ONNX Runtime looks up when it loads the library.
#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ort/abi.h"
#include "ort/cpu_op.h"
#include "ort/cuda_loader.h"
#include "ort/export.h"
#include "ort/ops.h"
#include "ort/runtime.h"
#include "ort/status.h"
#include "ort/threads.h"

namespace fanin::ort {
namespace {

constexpr const char* kDomain = "ai.fanin";

// The session config key that marks options in which these ops are registered, with the library's
// path: the runtime would accept a second registration of the domain, but then refuse to create a
// session.
constexpr const char* kLibraryKey = "fanin.library";

// The ops for the CUDA provider, or why there are none.
struct CudaOps {
  std::vector<const OrtCustomOp*> ops;
  std::string notice;  // a warning for the log; empty if nothing is wrong
};

bool offers_cuda(const Api& api) {
  char** names = nullptr;
  int count = 0;
  check(api, api.GetAvailableProviders(&names, &count));
  const bool found = std::any_of(names, names + count, [](const char* name) {
    return std::strcmp(name, "CUDAExecutionProvider") == 0;
  });
  check(api, api.ReleaseAvailableProviders(names, count));
  return found;
}

// Without a CUDA provider in the runtime, nothing is loaded. A provider may still fail to start
// because there is no device; then no node uses these ops.
CudaOps cuda_ops(const Runtime& runtime) {
  if (!offers_cuda(runtime.api)) return {};
  static const CudaLoad& load = *new CudaLoad(load_cuda_library(own_folder()));
  const std::string prefix = "fanin's CUDA kernels are not in use, its ops run on the CPU: ";
  if (load.state == CudaLoad::State::kBroken)
    return {{}, prefix + load.problem + "; install fanin again"};
  if (load.library == nullptr) return {};  // fanin doctor and open_session report it
  if (!runtime.has_api_18) return {{}, prefix + "they need onnxruntime 1.18 or newer"};
  return {load.library->make_ops(runtime), ""};
}

// The ops for one runtime, with one session's thread settings. The runtime keeps pointers to all of
// it.
struct Domain {
  Domain(const OrtApiBase& base, const ThreadSettings& threads)
      : runtime(Runtime::of(base)), cuda(cuda_ops(runtime)), settings{threads, cuda.notice} {
    visit_ops([this](auto visited) {
      using Op = typename decltype(visited)::Op;
      for (const ActivationTypes& types : Op::kCpuTypes)
        ops.push_back(std::make_shared<const CpuOp<Op>>(runtime, types, settings));
    });
    check(runtime.api, runtime.api.CreateCustomOpDomain(kDomain, &handle));
    for (const auto& op : ops) check(runtime.api, runtime.api.CustomOpDomain_Add(handle, op.get()));
    for (const OrtCustomOp* op : cuda.ops)
      check(runtime.api, runtime.api.CustomOpDomain_Add(handle, op));
  }

  const Runtime runtime;
  const CudaOps cuda;
  const CpuSettings settings;
  std::vector<std::shared_ptr<const OrtCustomOp>> ops;
  OrtCustomOpDomain* handle = nullptr;
};

// One domain serves all sessions with the same settings, so that repeated registration does not
// grow the process. Domains are never freed, since a session may outlive any other owner. Runtimes
// before 1.24 give a kernel no access to its session's settings, so the op carries them.
OrtCustomOpDomain* domain_for(const OrtApiBase& base, const ThreadSettings& threads) {
  struct Entry {
    const OrtApiBase* base;
    std::unique_ptr<const Domain> domain;
  };
  static std::mutex mutex;
  static auto& entries = *new std::vector<Entry>();
  const std::lock_guard<std::mutex> lock(mutex);
  for (const Entry& entry : entries)
    if (entry.base == &base && entry.domain->settings.threads == threads)
      return entry.domain->handle;
  entries.push_back({&base, std::make_unique<const Domain>(base, threads)});
  return entries.back().domain->handle;
}

void register_ops(OrtSessionOptions* options, const OrtApiBase& base) {
  const Runtime runtime = Runtime::of(base);
  const std::string path = own_path();
  stay_loaded();
  if (const std::optional<std::string> other = config_entry(runtime, options, kLibraryKey)) {
    if (*other == path) return;
    throw Error(kInvalidArgument, "these session options carry the ops of " + std::string(kDomain) +
                                      " from " + *other + " already, so that those of " + path +
                                      " cannot be added; register one of the two libraries");
  }
  ThreadSettings threads = settings_of_options(runtime, options);
  // Kernels never use more threads than CPUs; without this limit, each larger number would create a
  // domain.
  if (threads.threads) threads.threads = std::min(*threads.threads, available_cpus());
  OrtCustomOpDomain* domain = domain_for(base, threads);
  check(runtime.api, runtime.api.AddSessionConfigEntry(options, kLibraryKey, path.c_str()));
  check(runtime.api, runtime.api.AddCustomOpDomain(options, domain));
}

}  // namespace
}  // namespace fanin::ort

extern "C" FANIN_EXPORT fanin::ort::OrtStatus* RegisterCustomOps(
    fanin::ort::OrtSessionOptions* options, const fanin::ort::OrtApiBase* base) {
  namespace ort = fanin::ort;
  // Every runtime has API 1; its table is enough to report the error.
  return ort::guarded(ort::Api(base->GetApi(1)), "fanin",
                      [&] { ort::register_ops(options, *base); });
}
