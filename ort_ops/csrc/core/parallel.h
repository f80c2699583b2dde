// Splitting a run over the caller's threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>

#include "core/executor.h"

namespace fanin {

// Handing work to a pool thread and waiting for it costs about 5 us, so a chunk has to be worth
// several times that.
inline constexpr double kMinChunkMicroseconds = 15.0;

// Chunks for work that takes about `microseconds` on one thread and splits into `parts` at most.
inline size_t chunk_count(const Executor& executor, double microseconds, size_t parts) {
  const size_t worth =
      microseconds < 2 * kMinChunkMicroseconds
          ? 1
          : static_cast<size_t>(std::min(microseconds / kMinChunkMicroseconds, 65536.0));
  return std::max<size_t>(1, std::min({executor.concurrency(), worth, parts}));
}

// The first of the parts that chunk number `chunk` of `chunks` takes.
inline size_t chunk_begin(size_t parts, size_t chunks, size_t chunk) {
  return parts / chunks * chunk + std::min(chunk, parts % chunks);
}

// Calls body(chunk) for every chunk < chunks; a single chunk runs here, without the executor.
template <typename Body>
void run_chunks(const Executor& executor, size_t chunks, Body& body) {
  if (chunks == 1) {
    body(0);
    return;
  }
  executor.run(
      chunks, [](void* context, size_t chunk) noexcept { (*static_cast<Body*>(context))(chunk); },
      &body);
}

// Calls body(task) for every task < tasks, in any order, on the executor's threads; the body may
// throw, and the first exception is thrown here when all threads have stopped. Threads take task
// after task, since tasks may differ in size.
template <typename Body>
void run_tasks(const Executor& executor, size_t tasks, Body& body) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  auto worker = [&](size_t) {
    try {
      for (size_t task = next++; task < tasks; task = next++) body(task);
    } catch (...) {
      next = tasks;
      const std::lock_guard<std::mutex> lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  run_chunks(executor, std::clamp<size_t>(tasks, 1, executor.concurrency()), worker);
  if (failure) std::rethrow_exception(failure);
}

}  // namespace fanin
