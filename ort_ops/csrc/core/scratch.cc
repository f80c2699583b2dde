#include "core/scratch.h"

#include "core/aligned_buffer.h"

namespace fanin {

uint8_t* thread_scratch(size_t bytes, ScratchUse use) {
  thread_local AlignedBuffer<uint8_t> buffers[2];
  AlignedBuffer<uint8_t>& buffer = buffers[static_cast<size_t>(use)];
  if (buffer.size() < bytes) {
    buffer = AlignedBuffer<uint8_t>();  // frees before it allocates
    buffer = AlignedBuffer<uint8_t>(bytes + bytes / 4);
  }
  return buffer.data();
}

}  // namespace fanin
