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

void allow_y_over_residual(CondensedOp& op) {
  if (!op.runtime.has_api_18) return;
  // The residual's lines are in cache by then, while those of another buffer would have to be
  // brought in before they can be written.
  op.version = kInplaceApiVersion;
  op.GetMayInplace = [](int** inputs, int** outputs) noexcept -> size_t {
    static int input = kResidual, output = 0;  // the runtime only reads them
    *inputs = &input;
    *outputs = &output;
    return 1;
  };
  op.ReleaseMayInplace = [](int*, int*) noexcept {};
}

}  // namespace fanin::ort
