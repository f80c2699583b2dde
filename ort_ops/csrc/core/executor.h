// How a kernel uses its caller's threads.
#pragma once

#include <cstddef>

namespace fanin {

class Executor {
 public:
  virtual ~Executor() = default;

  // How many chunks can run at the same time, at least 1. Splitting into more gains nothing.
  virtual size_t concurrency() const = 0;

  // Calls body(context, i) once for every i < chunks and returns when all are done. The body must
  // not throw: an exception on a pool thread hangs session.run for ever.
  virtual void run(size_t chunks, void (*body)(void* context, size_t chunk) noexcept,
                   void* context) const = 0;
};

// Everything on the calling thread.
class InlineExecutor final : public Executor {
 public:
  size_t concurrency() const override { return 1; }
  void run(size_t chunks, void (*body)(void*, size_t) noexcept, void* context) const override {
    for (size_t chunk = 0; chunk < chunks; ++chunk) body(context, chunk);
  }
};

}  // namespace fanin
