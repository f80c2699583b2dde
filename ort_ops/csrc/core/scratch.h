// Working memory of one run.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fanin {

// Each use has its own block per thread.
enum class ScratchUse { kKernel, kActivations, kRounded };

// `bytes` of the calling thread's memory, aligned to a cache line, contents undefined. It stays
// valid until this thread's next call for the same use; other threads of a run may read and write
// it. It is kept between calls, since new pages would cost more than a small layer. Throws
// std::bad_alloc.
uint8_t* thread_scratch(size_t bytes, ScratchUse use = ScratchUse::kKernel);

// Lays out several arrays in one scratch block: each starts on a cache line.
class ScratchPlan {
 public:
  // The offset of an array of `bytes`.
  size_t add(size_t bytes) {
    const size_t at = total_;
    total_ += (bytes + 63) / 64 * 64;
    return at;
  }
  size_t total() const { return total_; }

 private:
  size_t total_ = 0;
};

}  // namespace fanin
