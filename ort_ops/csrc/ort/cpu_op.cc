#include "ort/cpu_op.h"

#include <algorithm>
#include <atomic>

namespace fanin::ort {

Concurrency concurrency_of(const Runtime& runtime, const KernelInfo& info,
                           const CpuSettings& settings) {
  const ThreadSettings said = settings_of_session(runtime, info.get()).value_or(settings.threads);
  const int threads = std::min(said.threads.value_or(default_threads()), available_cpus());
  return {static_cast<size_t>(threads), said.dispatch};
}

void tell_cuda_notice_once(const KernelInfo& info, const CpuSettings& settings) {
  static std::atomic<bool> told{false};
  if (!settings.cuda_notice.empty() && !told.exchange(true))
    info.log(kWarning, settings.cuda_notice);
}

}  // namespace fanin::ort
