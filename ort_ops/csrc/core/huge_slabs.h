// Memory of large packed arrays, carved from mappings of our own so that arrays share huge pages.
#pragma once

#include <cstddef>

namespace fanin {

// Zeroed memory, aligned to a cache line; `bytes` > 0 must be a multiple of a cache line. Arrays
// lie side by side in mappings that request transparent huge pages (if the system has none, they
// are ordinary memory). A process uses at most one huge page more than its arrays need, plus freed
// arrays in pages that others still use. A page returns to the system with its last array. Throws
// std::bad_alloc. Both functions are thread-safe.
void* allocate_in_slab(size_t bytes);
void free_in_slab(void* block, size_t bytes) noexcept;

}  // namespace fanin
