// What the expand kernel does with its sums: those of all parts meet in shared memory, and outputs
// are made of them.
#pragma once

#include <cstdint>

#include "cuda/expand_share.h"
#include "cuda/types.h"

namespace fanin::cuda {

template <typename Samples>
class ExpandSums : ExpandTile<typename Samples::X> {
  using X = typename Samples::X;
  using Args = typename Samples::Args;
  using Tile = ExpandTile<X>;
  static constexpr int kTile = Samples::kTile;
  static constexpr int kRows = Tile::kRows;
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
  static FANIN_INLINE void finish(const Context& context, const Args& args,
                                  const ExpandShare& share, const Samples& samples) {
    const int rows = block_rows(share), all = rows * kTile;
    const auto outputs = context.template global<int32_t>(args.outputs, args.tiles() * kRows);
    const auto bias = context.template global<float>(args.bias, args.out_features);
    const int64_t count = args.batch * args.out_features;
    const auto y = context.template output<X>(args.y, count);
    const int last = all / args.cluster * (share.rank + 1);
    for (int i = all / args.cluster * share.rank + context.thread(); i < last;
         i += context.threads()) {
      const int n = Samples::sample_of(i, rows), row = Samples::row_of(i, rows);
      const int64_t sample = samples.first() + n;
      if (sample >= args.batch || share.block_tile + row / kRows >= share.end_tile) continue;
      const int64_t output = outputs[static_cast<int64_t>(share.block_tile) * kRows + row];
      if (output < 0) continue;
      float value = 0;
      for (int rank = 0; rank < args.cluster; ++rank) {
        const auto from = sums_of(context, share, rank);
        for (int part = 0; part < share.block_parts; ++part)
          value += from.load((part * rows + row) * kPitch + n);
      }
      if (is_doubtful(value)) value = gather(context, args, share, row, sample);
      value += bias[output];
      const int64_t at = Samples::output_at(args, sample, output);
      if (args.residual) value += widen(context.template global<X>(args.residual, count)[at]);
      y.store(at, narrow<X>(Samples::activated(context, args, value)));
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

  // NaN may come from zeros in the image; infinities of TF32 from rounding, see tf32_bits.
  static FANIN_INLINE bool is_doubtful(float value) {
    return Tile::kTf32 ? (bits_of(value) & 0x7f800000) == 0x7f800000 : value != value;
  }

  // The sum over the stored weights of a row alone, which zeros in the image do not enter, with x
  // not rounded.
  template <typename Context>
  static FANIN_INLINE float gather(const Context& context, const Args& args,
                                   const ExpandShare& share, int block_row, int64_t sample) {
    const int64_t tile = share.block_tile + block_row / kRows;
    const int row = block_row % kRows;
    float sum = 0;
    for (int chunk = 0; chunk < args.chunks; ++chunk) {
      const int last = expand_start_of(context, args, tile * args.chunks + chunk + 1);
      for (int at = expand_start_of(context, args, tile * args.chunks + chunk); at < last; ++at) {
        const Raw<16> four = expand_vector_at(context, args, at);
        FANIN_UNROLL
        for (int i = 0; i < Tile::kVectorWords; ++i) {
          const int place = Tile::place_in(four.words[i]);
          if (place >= Tile::kImage || Tile::row_of(place) != row) continue;
          const int column = chunk * Tile::kColumns + Tile::column_of(place);
          sum = context.fma(widen_bits<X>(Tile::element_in(four.words[i])),
                            Samples::x_at(context, args, share.group, sample, column), sum);
        }
      }
    }
    return sum;
  }
};

}  // namespace fanin::cuda
