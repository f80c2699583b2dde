// The interface through which a kernel uses its caller's threads.
#pragma once

#include <cstddef>

namespace fanin {

// The cost of starting a run on several threads and waiting for the last of them, in microseconds,
// without the work itself.
struct DispatchCost {
  double fixed = 0.0;
  double per_thread = 0.0;

  double microseconds(size_t threads) const {
    return threads <= 1 ? 0.0 : fixed + per_thread * static_cast<double>(threads);
  }
  bool operator==(const DispatchCost& other) const {
    return fixed == other.fixed && per_thread == other.per_thread;
  }
};

class Executor {
 public:
  virtual ~Executor() = default;

  // The number of chunks that can run at the same time, at least 1. More chunks gain nothing.
  virtual size_t concurrency() const = 0;

  // 0 unless overridden, so that everything that can be split is split.
  virtual DispatchCost dispatch_cost() const { return {}; }

  // Calls body(context, i) once for every i < chunks and returns when all are done. The body must
  // not throw: an exception on a pool thread makes session.run hang.
  virtual void run(size_t chunks, void (*body)(void* context, size_t chunk) noexcept,
                   void* context) const = 0;
};

// Runs everything on the calling thread.
class InlineExecutor final : public Executor {
 public:
  size_t concurrency() const override { return 1; }
  void run(size_t chunks, void (*body)(void*, size_t) noexcept, void* context) const override {
    for (size_t chunk = 0; chunk < chunks; ++chunk) body(context, chunk);
  }
};

}  // namespace fanin
