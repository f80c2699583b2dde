// What a warp of the expand kernel computes.
#pragma once

#include <cstdint>

#include "cuda/expand_shape.h"
#include "cuda/types.h"

namespace fanin::cuda {

struct ExpandShare {
  int rank;  // of the block in its cluster
  int block_parts;
  int block_part;  // of the warp
  int row_warps;   // warps of a part
  int group;
  int end_tile;    // of the group
  int block_tile;  // the block's first tile of rows
  int tile;        // the warp's
  int chunk;       // the first
  int last;        // past its last chunk
  int steps;       // chunks of a part; the last ones may have fewer
};

// Four words of a tile.
template <typename Context>
FANIN_INLINE Raw<16> expand_vector_at(const Context& context, const ExpandArgs& args, int at) {
  return context.template global<Raw<16>>(args.words, args.vectors).once(at);
}

// Vectors before the end of the tiles of that number, see ExpandArgs::starts.
template <typename Context>
FANIN_INLINE int expand_start_of(const Context& context, const ExpandArgs& args, int64_t number) {
  return context.template global<int32_t>(args.starts, args.tiles() * args.chunks + 1)[number];
}

}  // namespace fanin::cuda
