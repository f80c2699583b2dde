// A thread pool that many callers share, as the requests of a server share ONNX Runtime's.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/executor.h"

namespace fanin {

class SharedPool final : public Executor {
 public:
  // The caller of run() works too, so a pool of size one has no thread of its own.
  explicit SharedPool(size_t concurrency) {
    for (size_t i = 1; i < concurrency; ++i) workers_.emplace_back([this] { work(); });
  }

  ~SharedPool() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  size_t concurrency() const override { return workers_.size() + 1; }

  void run(size_t chunks, void (*body)(void*, size_t) noexcept, void* context) const override {
    const auto job = std::make_shared<Job>(chunks, body, context);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      jobs_.push_back(job);
    }
    wake_.notify_all();
    take_chunks(*job);
    std::unique_lock<std::mutex> lock(job->mutex);
    job->finished.wait(lock, [&] { return job->done == chunks; });
  }

  // Number of runs that were split so far; 0 would mean that nothing was tested.
  size_t runs_by_workers() const { return runs_by_workers_; }

 private:
  struct Job {
    Job(size_t job_chunks, void (*job_body)(void*, size_t) noexcept, void* job_context)
        : chunks(job_chunks), body(job_body), context(job_context) {}

    const size_t chunks;
    void (*const body)(void*, size_t) noexcept;
    void* const context;
    std::atomic<size_t> next{0};
    std::mutex mutex;
    std::condition_variable finished;
    size_t done = 0;  // under the mutex
  };

  static size_t take_chunks(Job& job) {
    size_t taken = 0;
    for (size_t chunk = job.next++; chunk < job.chunks; chunk = job.next++, ++taken) {
      job.body(job.context, chunk);
      const std::lock_guard<std::mutex> lock(job.mutex);
      if (++job.done == job.chunks) job.finished.notify_all();
    }
    return taken;
  }

  void work() {
    for (;;) {
      std::shared_ptr<Job> job;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        job = jobs_.front();
        if (job->next >= job->chunks) {
          jobs_.pop_front();
          continue;
        }
      }
      if (take_chunks(*job) > 0) ++runs_by_workers_;
    }
  }

  mutable std::mutex mutex_;
  mutable std::condition_variable wake_;
  mutable std::deque<std::shared_ptr<Job>> jobs_;  // with chunks left, and some without
  bool stopping_ = false;
  std::atomic<size_t> runs_by_workers_{0};
  std::vector<std::thread> workers_;
};

}  // namespace fanin
