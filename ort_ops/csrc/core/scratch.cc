#include "core/scratch.h"

#include "core/aligned_buffer.h"

namespace fanin {

uint8_t* thread_scratch(size_t bytes) {
  thread_local AlignedBuffer<uint8_t> buffer;
  if (buffer.size() < bytes) {
    buffer = AlignedBuffer<uint8_t>();  // frees before it allocates
    buffer = AlignedBuffer<uint8_t>(bytes + bytes / 4);
  }
  return buffer.data();
}

}  // namespace fanin
