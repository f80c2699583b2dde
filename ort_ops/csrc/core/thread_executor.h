// An executor that starts its own threads, for work outside a session's pool: packing at session
// creation, and tests.
#pragma once

#include <cstddef>

#include "core/executor.h"

namespace fanin {

// Starts new threads for every run, which takes about 50 us: too slow for inference.
class ThreadExecutor final : public Executor {
 public:
  explicit ThreadExecutor(size_t threads) : threads_(threads) {}

  size_t concurrency() const override { return threads_; }
  void run(size_t chunks, void (*body)(void*, size_t) noexcept, void* context) const override;

 private:
  size_t threads_;
};

}  // namespace fanin
