// Splitting a run over the caller's threads.
#pragma once

#include <algorithm>
#include <cstddef>

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

}  // namespace fanin
