// Splitting a run over the caller's threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>

#include "core/executor.h"
#include "core/work_plan.h"

namespace fanin {

// The number of chunks that finishes first; the smallest if several do.
inline size_t chunk_count(const EvenWork& work, size_t threads, const DispatchCost& dispatch) {
  size_t best = 1;
  double shortest = work.microseconds;
  for (size_t chunks = 2; chunks <= std::min(threads, work.parts); ++chunks) {
    const double time = dispatch.microseconds(chunks) + work.share(chunks);
    if (time < shortest) {
      best = chunks;
      shortest = time;
    }
  }
  return best;
}

inline size_t chunk_count(const Executor& executor, const EvenWork& work) {
  return chunk_count(work, executor.concurrency(), executor.dispatch_cost());
}

// The first part of chunk number `chunk` of `chunks`.
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

// Calls body(part, thread, is_first) for every part of the plan; calls with the same `thread` never
// overlap, and is_first is true for the first of them. A thread begins with its own parts, so that
// its caches still hold the data of the previous run, and continues with parts that other threads
// have not begun.
template <typename Body>
void run_plan(const Executor& executor, const WorkPlan& plan, Body& body) {
  const size_t threads = plan.threads, parts = plan.parts(), own = parts / threads;
  if (parts == threads) {
    auto chunk = [&](size_t t) { body(t, t, true); };
    run_chunks(executor, threads, chunk);
    return;
  }
  const std::unique_ptr<std::atomic<bool>[]> claimed(new std::atomic<bool>[parts]());
  auto chunk = [&](size_t t) {
    bool is_first = true;
    for (size_t i = 0; i < parts; ++i) {
      const size_t part = (t * own + i) % parts;
      if (claimed[part].load(std::memory_order_relaxed) ||
          claimed[part].exchange(true, std::memory_order_relaxed))
        continue;
      body(part, t, is_first);
      is_first = false;
    }
  };
  run_chunks(executor, threads, chunk);
}

// Calls body(task) for every task < tasks, in any order, on the executor's threads. The body may
// throw; the first exception is rethrown here when all threads have stopped. Each thread takes one
// task after another, since tasks may differ in size.
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
