#include "core/scratch.h"

#include "core/aligned_buffer.h"

namespace fanin {
namespace {

// Has no destructor, so that it stays valid while other destructors of the thread run.
struct Block {
  uint8_t* data;
  size_t bytes;
};

thread_local Block blocks[3];

// Frees the blocks when their thread ends. The main thread's blocks are freed before static objects
// are destroyed: a session that one of these still runs allocates new blocks.
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
