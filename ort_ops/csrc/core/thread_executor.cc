#include "core/thread_executor.h"

#include <thread>
#include <vector>

namespace fanin {

void ThreadExecutor::run(size_t chunks, void (*body)(void*, size_t) noexcept, void* context) const {
  std::vector<std::thread> others;
  others.reserve(chunks);
  size_t started = 1;
  try {
    for (; started < chunks; ++started) others.emplace_back(body, context, started);
  } catch (...) {
    // No thread could be started: the calling thread does the rest.
  }
  for (size_t chunk = started; chunk < chunks; ++chunk) body(context, chunk);
  body(context, 0);
  for (std::thread& other : others) other.join();
}

}  // namespace fanin
