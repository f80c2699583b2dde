// The session's intra-op pool as an Executor. There is no other pool: additional threads would
// oversubscribe a server that relies on the session's setting.
#pragma once

#include "core/executor.h"
#include "ort/abi.h"
#include "ort/runtime.h"
#include "ort/status.h"

namespace fanin::ort {

class SessionExecutor final : public Executor {
 public:
  SessionExecutor(const Runtime& runtime, const OrtKernelContext* context, size_t concurrency,
                  const DispatchCost& dispatch)
      : api_(runtime.api), context_(context), concurrency_(concurrency), dispatch_(dispatch) {}

  size_t concurrency() const override { return concurrency_; }
  DispatchCost dispatch_cost() const override { return dispatch_; }

  void run(size_t chunks, void (*body)(void*, size_t) noexcept, void* user) const override {
    if (chunks <= 1 || concurrency_ <= 1) {
      InlineExecutor().run(chunks, body, user);
      return;
    }
    // More tasks than CPUs cost p95 latency in oversubscribed sessions; 0 is one task per chunk.
    const size_t batches = chunks > concurrency_ ? concurrency_ : 0;
    check(api_, api_.KernelContext_ParallelFor(context_, body, chunks, batches, user));
  }

 private:
  const Api& api_;
  const OrtKernelContext* context_;
  size_t concurrency_;
  DispatchCost dispatch_;
};

}  // namespace fanin::ort
