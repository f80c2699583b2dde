#include "core/huge_slabs.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "core/aligned_buffer.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace fanin {

#ifdef __linux__
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSlabBytes = size_t{64}
                              << 20;  // of address space; memory comes when it is written

struct Slab {
  size_t bytes = 0;
  size_t used = 0;              // from the front; what was freed is not used again
  size_t live = 0;              // bytes of arrays
  std::vector<uint32_t> pages;  // arrays that each huge page holds a part of
};

// A mapping aligned to huge pages.
char* map_slab(size_t bytes) {
  void* mapped = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  char* const begin = static_cast<char*>(mapped);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (before > 0) munmap(begin, before);
  munmap(begin + before + bytes, kHugePage - before);
#ifdef MADV_HUGEPAGE
  madvise(begin + before, bytes, MADV_HUGEPAGE);  // refused where the kernel has none: no harm
#endif
  return begin + before;
}

class Slabs {
 public:
  char* allocate(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (current_ == slabs_.end() || bytes > current_->second.bytes - current_->second.used)
      add(bytes);
    Slab& slab = current_->second;
    char* const block = current_->first + slab.used;
    for (size_t p = slab.used / kHugePage; p <= (slab.used + bytes - 1) / kHugePage; ++p)
      ++slab.pages[p];
    slab.used += bytes;
    slab.live += bytes;
    return block;
  }

  void free(char* block, size_t bytes) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = std::prev(slabs_.upper_bound(block));
    Slab& slab = at->second;
    slab.live -= bytes;
    if (slab.live == 0) {
      if (at == current_) current_ = slabs_.end();
      munmap(at->first, slab.bytes);
      slabs_.erase(at);
      return;
    }
    const size_t begin = static_cast<size_t>(block - at->first);
    for (size_t p = begin / kHugePage; p <= (begin + bytes - 1) / kHugePage; ++p)
      // The page in which the next array will start may be empty meanwhile; it is released as well,
      // and reads zero again.
      if (--slab.pages[p] == 0) madvise(at->first + p * kHugePage, kHugePage, MADV_DONTNEED);
  }

 private:
  void add(size_t bytes) {
    const size_t size = std::max(kSlabBytes, (bytes + kHugePage - 1) / kHugePage * kHugePage);
    Slab slab;
    slab.bytes = size;
    slab.pages.resize(size / kHugePage);
    char* const base = map_slab(size);
    try {
      current_ = slabs_.emplace(base, std::move(slab)).first;
    } catch (...) {
      munmap(base, size);
      throw;
    }
  }

  std::mutex mutex_;
  std::map<char*, Slab> slabs_;
  std::map<char*, Slab>::iterator current_ = slabs_.end();  // that arrays are carved from
};

Slabs& slabs() {
  // Never destroyed, since layers may be freed while the process exits.
  static Slabs& instance = *new Slabs();
  return instance;
}

}  // namespace

void* allocate_in_slab(size_t bytes) {
  if (bytes > SIZE_MAX - kSlabBytes) throw std::bad_alloc();
  return slabs().allocate(bytes);
}

void free_in_slab(void* block, size_t bytes) noexcept {
  slabs().free(static_cast<char*>(block), bytes);
}

#else

void* allocate_in_slab(size_t bytes) { return allocate_block(bytes); }
void free_in_slab(void* block, size_t bytes) noexcept { free_block(block, bytes); }

#endif

}  // namespace fanin
