// Sizes, arguments and the order of weights of the expand kernel, see expand_kernel.h.
#pragma once

#include <cstdint>

#include "cuda/types.h"

namespace fanin::cuda {

struct ExpandShape {
  static constexpr int kRows = 16;  // of a tile
  static constexpr int kColumns = 128;
  static constexpr int kSteps = kColumns / 16;  // of the tensor cores
  static constexpr int kImage = kRows * kColumns;
  // Words that fill the last vector of a tile have their places past the image.
  static constexpr int kPadding = 8;
  static constexpr int kImageBytes = (kImage + kPadding) * 2;
  static constexpr int kVectorWords = 4;
  static constexpr int kChunkBytes = kColumns * 2;  // of a sample
  static constexpr int kMaxParts = 8;
  static constexpr int kMaxTile = 128;  // samples
  static constexpr int kLeastStages = 2, kMostStages = 4;

  // The place of a weight in its tile's image: 8 elements a lane, 256 a step.
  static constexpr int place(int row, int column) {
    const int lane = row % 8 * 4 + column % 8 / 2;
    const int part = row / 8 + column % 16 / 8 * 2;  // one of the lane's four registers
    return column / 16 * 256 + lane * 8 + part * 2 + column % 2;
  }
  // The inverse.
  static FANIN_INLINE int row_of(int place) { return place % 256 / 32 + place / 2 % 2 * 8; }
  static FANIN_INLINE int column_of(int place) {
    return place / 256 * 16 + place / 4 % 2 * 8 + place / 8 % 4 * 2 + place % 2;
  }
};

struct ExpandArgs {
  const void* words;       // [vectors, 4]: value << 16 | place in the image
  const int32_t* starts;   // [tiles, chunks] and the end: the tile's first vector
  const int32_t* outputs;  // [tiles, 16]: output rows; -1 for none
  const float* bias;       // [out_features]
  const void* x;           // [batch, in_features]
  const void* residual;    // [batch, out_features] or null
  void* y;                 // [batch, out_features]
  int64_t batch;
  int32_t in_features;
  int32_t out_features;
  int32_t vectors;
  int32_t tiles;    // of rows
  int32_t chunks;   // of columns
  int32_t parts;    // of the chunks; a multiple of the cluster
  int32_t cluster;  // blocks that share the parts
  int32_t stages;   // chunks of x in shared memory
  float clip_min;
  float clip_max;
};

// Tiles of rows that a warp has: with many samples, two, so that each operand that it reads from
// the samples serves both.
inline constexpr int expand_warp_tiles(int tile) { return tile >= 64 ? 2 : 1; }

// Shared memory of a block: the images, then the samples; in the end the sums lie in their place.
inline int64_t expand_shared_bytes(int64_t tile, int64_t warps, int64_t parts_of_block,
                                   int64_t stages) {
  const int64_t tiles = expand_warp_tiles(static_cast<int>(tile));
  const int64_t loop = warps * tiles * ExpandShape::kImageBytes +
                       stages * parts_of_block * tile * ExpandShape::kChunkBytes;
  const int64_t rows = warps / parts_of_block * tiles * ExpandShape::kRows;
  const int64_t sums = parts_of_block * rows * (tile + 1) * 4;
  return loop > sums ? loop : sums;
}

}  // namespace fanin::cuda
