// What the expand kernel does with its sums: those of all parts meet in shared memory, and outputs
// are made of them.
#pragma once

#include <cstdint>

#include "cuda/expand_shape.h"
#include "cuda/types.h"

namespace fanin::cuda {

// The share of a warp.
struct ExpandShare {
  int rank;  // of the block in its cluster
  int block_parts;
  int block_part;  // of the warp
  int row_warps;   // warps of a part
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

template <typename X, int kTile>
class ExpandSums : ExpandShape {
  static constexpr int kWarpTiles = expand_warp_tiles(kTile);
  static constexpr int kColumnGroups = kTile / 8;
  static constexpr int kPitch = kTile + 1;  // of sums, which distributes rows over the banks

 public:
  // Puts the sums of a warp into the block's shared memory.
  template <typename Context>
  static FANIN_INLINE void put(const Context& context, const ExpandShare& share,
                               const float (&sums)[kWarpTiles][kColumnGroups][4]) {
    const int lane = context.thread() % 32;
    const auto to = context.template shared<float>(
        0, static_cast<int64_t>(share.block_parts) * block_rows(share) * kPitch);
    const int first =
        share.block_part * block_rows(share) + (share.tile - share.block_tile) * kRows + lane / 4;
    FANIN_UNROLL
    for (int t = 0; t < kWarpTiles; ++t) {
      FANIN_UNROLL
      for (int group = 0; group < kColumnGroups; ++group) {
        FANIN_UNROLL
        for (int i = 0; i < 4; ++i)
          to.store((first + t * kRows + i / 2 * 8) * kPitch + group * 8 + lane % 4 * 2 + i % 2,
                   sums[t][group][i]);
      }
    }
  }

  // A block of the cluster writes its share of the outputs.
  template <typename Context>
  static FANIN_INLINE void finish(const Context& context, const ExpandArgs& args,
                                  const ExpandShare& share, int64_t sample) {
    const int rows = block_rows(share), all = rows * kTile;
    const auto outputs =
        context.template global<int32_t>(args.outputs, static_cast<int64_t>(args.tiles) * kRows);
    const auto bias = context.template global<float>(args.bias, args.out_features);
    const int64_t count = args.batch * args.out_features;
    const auto y = context.template output<X>(args.y, count);
    const int last = all / args.cluster * (share.rank + 1);
    for (int i = all / args.cluster * share.rank + context.thread(); i < last;
         i += context.threads()) {
      const int n = i / rows, row = i % rows;
      if (sample + n >= args.batch) return;
      if (share.block_tile + row / kRows >= args.tiles) continue;
      const int64_t output = outputs[static_cast<int64_t>(share.block_tile) * kRows + row];
      if (output < 0) continue;
      float value = 0;
      for (int rank = 0; rank < args.cluster; ++rank) {
        const auto from = sums_of(context, share, rank);
        for (int part = 0; part < share.block_parts; ++part)
          value += from.load((part * rows + row) * kPitch + n);
      }
      if (value != value) value = gather(context, args, share.block_tile, row, sample + n);
      value += bias[output];
      const int64_t at = (sample + n) * args.out_features + output;
      if (args.residual) value += widen(context.template global<X>(args.residual, count)[at]);
      y.store(at, narrow<X>(clipped(value, args.clip_min, args.clip_max)));
    }
  }

 private:
  // Of a part's sums.
  static FANIN_INLINE int block_rows(const ExpandShare& share) {
    return share.row_warps * kWarpTiles * kRows;
  }

  template <typename Context>
  static FANIN_INLINE auto sums_of(const Context& context, const ExpandShare& share, int rank) {
    return context.template cluster_shared<float>(
        rank, 0, static_cast<int64_t>(share.block_parts) * block_rows(share) * kPitch);
  }

  // The sum over the stored weights of a row alone, which zeros in the image do not enter.
  template <typename Context>
  static FANIN_INLINE float gather(const Context& context, const ExpandArgs& args, int block_tile,
                                   int block_row, int64_t sample) {
    const int64_t tile = block_tile + block_row / kRows;
    const int row = block_row % kRows;
    const auto starts = context.template global<int32_t>(
        args.starts, static_cast<int64_t>(args.tiles) * args.chunks + 1);
    const auto x = context.template global<X>(args.x, args.batch * args.in_features);
    float sum = 0;
    for (int chunk = 0; chunk < args.chunks; ++chunk) {
      const int32_t last = starts[tile * args.chunks + chunk + 1];
      for (int32_t at = starts[tile * args.chunks + chunk]; at < last; ++at) {
        const Raw<16> four = expand_vector_at(context, args, at);
        FANIN_UNROLL
        for (int i = 0; i < kVectorWords; ++i) {
          const int place = static_cast<int>(four.words[i] & 0xffff);
          if (place >= kImage || row_of(place) != row) continue;
          const int64_t column = static_cast<int64_t>(chunk) * kColumns + column_of(place);
          sum = context.fma(widen_bits<X>(four.words[i] >> 16),
                            widen(x[sample * args.in_features + column]), sum);
        }
      }
    }
    return sum;
  }
};

}  // namespace fanin::cuda
