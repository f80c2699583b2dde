#include "ort/cpu_op.h"

#include <algorithm>
#include <atomic>

#include "ort/threads.h"

namespace fanin::ort {

size_t concurrency_of(const Runtime& runtime, const KernelInfo& info, const CpuSettings& settings) {
  std::optional<int> threads = settings.threads;
  if (const std::optional<int> told = threads_of_session(runtime, info.get())) threads = told;
  return static_cast<size_t>(std::min(threads.value_or(available_cpus()), available_cpus()));
}

void tell_cuda_notice_once(const KernelInfo& info, const CpuSettings& settings) {
  static std::atomic<bool> told{false};
  if (!settings.cuda_notice.empty() && !told.exchange(true))
    info.log(kWarning, settings.cuda_notice);
}

}  // namespace fanin::ort
