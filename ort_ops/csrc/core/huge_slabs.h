// Memory of large packed arrays, carved from our own mappings so that they share huge pages.
#pragma once

#include <cstddef>

namespace fanin {

// `bytes` > 0, a multiple of a cache line: zeroed, aligned to a cache line. Arrays lie side by side
// in mappings that ask for transparent huge pages (where the system has none, they are ordinary
// memory): a process takes at most one huge page more than what its arrays hold together, plus what
// was freed in pages that others still use. Pages go back to the system with their last array.
// Throws std::bad_alloc. Any thread may call both.
void* allocate_in_slab(size_t bytes);
void free_in_slab(void* block, size_t bytes) noexcept;

}  // namespace fanin
