#include "core/scratch.h"

#include "core/aligned_buffer.h"

namespace fanin {
namespace {

// Needs no destructor, so that it stands when others of the thread have run.
struct Block {
  uint8_t* data;
  size_t bytes;
};

thread_local Block blocks[2];

// Frees the blocks with their thread. The main thread's goes before the process's static objects: a
// session that one of these still runs takes blocks anew.
struct Freeing {
  ~Freeing() {
    for (Block& block : blocks) {
      free_block(block.data, block.bytes);
      block = {};
    }
  }
};

}  // namespace

uint8_t* thread_scratch(size_t bytes, ScratchUse use) {
  thread_local Freeing freeing;
  Block& block = blocks[static_cast<size_t>(use)];
  if (block.bytes < bytes) {
    free_block(block.data, block.bytes);
    block = {};
    const size_t room = (bytes + bytes / 4 + kAlignment - 1) / kAlignment * kAlignment;
    block = {static_cast<uint8_t*>(allocate_block(room)), room};
  }
  return block.data;
}

}  // namespace fanin
