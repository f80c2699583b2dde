// Sizes, arguments and the order of weights of the expand kernel, see expand_kernel.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/types.h"

namespace fanin::cuda {

struct ExpandShape {
  static constexpr int kRows = 16;          // of a tile
  static constexpr int kSteps = 8;          // of the tensor cores for a tile
  static constexpr int kChunkBytes = 256;   // of a sample: the columns of a tile
  static constexpr int kPaddingBytes = 16;  // past the image, see ExpandTile::kPadding
  static constexpr int kImageBytes = kRows * kChunkBytes + kPaddingBytes;
  static constexpr int kVectorWords = 4;
  static constexpr int kMaxParts = 8;
  static constexpr int kMaxTile = 128;  // samples
  static constexpr int kLeastStages = 2, kMostStages = 4;
};

// Columns of a tile.
inline int64_t expand_columns(ValueType activations) {
  return ExpandShape::kChunkBytes / static_cast<int64_t>(value_bytes(activations));
}

// A tile of weights for activations of type X; for float32 weights are TF32. A word is a weight and
// its place in the image of the tile, which has the order in which lanes hold the first operand of
// mma.m16n8k16 (TF32: m16n8k8).
template <typename X>
struct ExpandTile : ExpandShape {
  static constexpr bool kTf32 = std::is_same_v<X, float>;
  using Element = std::conditional_t<kTf32, uint32_t, uint16_t>;
  static constexpr int kPair = 4 / static_cast<int>(sizeof(X));  // elements of a register
  static constexpr int kColumns = kChunkBytes / static_cast<int>(sizeof(X));
  static constexpr int kStepColumns = kColumns / kSteps;
  static constexpr int kImage = kRows * kColumns;
  // Words that fill the last vector of a tile have their places past the image.
  static constexpr int kPadding = kPaddingBytes / static_cast<int>(sizeof(X));
  // TF32 has 19 bits, which leaves 13 of a word for the place.
  static constexpr uint32_t kPlaceMask = kTf32 ? 0x1fff : 0xffff;

  // Four registers a lane.
  static constexpr int place(int row, int column) {
    const int lane = row % 8 * 4 + column % (4 * kPair) / kPair;
    const int part = row / 8 + column % kStepColumns / (4 * kPair) * 2;
    return ((column / kStepColumns * 32 + lane) * 4 + part) * kPair + column % kPair;
  }
  // The inverse.
  static FANIN_INLINE int row_of(int place) {
    return place / kPair % 128 / 16 + place / kPair % 2 * 8;
  }
  static FANIN_INLINE int column_of(int place) {
    const int part = place / kPair;
    return part / 128 * kStepColumns + part / 2 % 2 * (4 * kPair) + part / 4 % 4 * kPair +
           place % kPair;
  }

  static FANIN_INLINE int place_in(uint32_t word) { return static_cast<int>(word & kPlaceMask); }
  static FANIN_INLINE Element element_in(uint32_t word) {
    return static_cast<Element>(kTf32 ? word & ~kPlaceMask : word >> 16);
  }
};

struct ExpandArgs {
  const void* words;       // [vectors, 4], see ExpandTile
  const int32_t* starts;   // [tiles, chunks] and the end: the tile's first vector
  const int32_t* outputs;  // [tiles, 16]: output rows; -1 for none
  const float* bias;       // [out_features]
  const void* x;           // [batch, in_features]; of a convolution the images
  const void* residual;    // as y, or null
  void* y;                 // [batch, out_features]; of a convolution the images
  int64_t batch;           // samples; of a convolution the pixels of y of all images
  int32_t in_features;     // of a convolution, of the window of a group
  int32_t out_features;
  int32_t vectors;
  int32_t groups;       // of rows, with samples of their own
  int32_t group_tiles;  // of rows, in each of them
  int32_t chunks;       // of columns
  int32_t parts;        // of the chunks; a multiple of the cluster
  int32_t cluster;      // blocks that share the parts
  int32_t stages;       // chunks of x in shared memory
  float clip_min;
  float clip_max;

  FANIN_INLINE int64_t tiles() const { return static_cast<int64_t>(groups) * group_tiles; }
};

// Tiles of rows that a warp has: with many samples, two, so that each operand that it reads from
// the samples serves both.
inline constexpr int expand_warp_tiles(int tile) { return tile >= 64 ? 2 : 1; }

// Shared memory of a block: the images, then the samples, `chunk_bytes` for a chunk of a part; in
// the end the sums lie in their place.
inline int64_t expand_shared_bytes(int64_t tile, int64_t warps, int64_t parts_of_block,
                                   int64_t stages, int64_t chunk_bytes) {
  const int64_t tiles = expand_warp_tiles(static_cast<int>(tile));
  const int64_t loop =
      warps * tiles * ExpandShape::kImageBytes + stages * parts_of_block * chunk_bytes;
  const int64_t rows = warps / parts_of_block * tiles * ExpandShape::kRows;
  const int64_t sums = parts_of_block * rows * (tile + 1) * 4;
  return loop > sums ? loop : sums;
}

}  // namespace fanin::cuda
