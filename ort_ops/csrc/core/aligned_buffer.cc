#include "core/aligned_buffer.h"

#include <cstdlib>
#include <cstring>

#ifdef __linux__
#include <sys/mman.h>
#elif defined(_WIN32)
#include <malloc.h>
#endif

namespace fanin {
namespace {

#ifdef __linux__
bool is_mapped(size_t bytes) { return bytes >= kMappedBytes; }

void* checked(void* block) {
  if (block == MAP_FAILED) throw std::bad_alloc();
  return block;
}
#endif

// Windows has no std::aligned_alloc.
#ifdef _WIN32
void* allocate_aligned(size_t bytes) { return _aligned_malloc(bytes, kAlignment); }
void free_aligned(void* block) noexcept { _aligned_free(block); }
#else
void* allocate_aligned(size_t bytes) { return std::aligned_alloc(kAlignment, bytes); }
void free_aligned(void* block) noexcept { std::free(block); }
#endif

}  // namespace

void* allocate_block(size_t bytes) {
  if (bytes == 0) return nullptr;
#ifdef __linux__
  if (is_mapped(bytes))
    return checked(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
#endif
  void* block = allocate_aligned(bytes);
  if (block == nullptr) throw std::bad_alloc();
  return std::memset(block, 0, bytes);
}

void* resize_block(void* block, size_t from, size_t to) {
  if (from == to) return block;
#ifdef __linux__
  if (is_mapped(from) && is_mapped(to)) return checked(mremap(block, from, to, MREMAP_MAYMOVE));
#endif
  void* moved = allocate_block(to);
  if (from > 0 && to > 0) std::memcpy(moved, block, from < to ? from : to);
  free_block(block, from);
  return moved;
}

void free_block(void* block, size_t bytes) noexcept {
  if (bytes == 0) return;
#ifdef __linux__
  if (is_mapped(bytes)) {
    munmap(block, bytes);
    return;
  }
#endif
  free_aligned(block);
}

}  // namespace fanin
