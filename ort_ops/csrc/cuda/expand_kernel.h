// Batches: a thread program that reads weights as sparse and multiplies them as dense on tensor
// cores, in float16, bfloat16 or (float32 activations) TF32.
//
// The weights are cut into tiles of 16 rows x 256 bytes of columns, each a list of words: a value
// and its place in the tile's image, which has the order in which lanes hold the first operand of
// the tensor cores. Packing deals the words so that those that a warp stores at once lie in
// different banks. A warp has its own tiles and images:
//
//   for each chunk of columns:
//     barrier: the samples of this chunk have arrived | copies of a later chunk begin
//     words to the image | image and samples to the tensor cores | zeros where words were
//   sums of all parts of the columns, in their order, bias, residual, clip
//
// What a sample is, and where its x and y are, is the argument Samples: row_samples.h or
// pixel_samples.h. The parts of the columns belong to the blocks of a cluster or, without clusters,
// to the warps of a block. Tensor cores also multiply the zeros, so an infinity or NaN in x makes
// the sums of all rows NaN; a sum that is NaN (in TF32, or infinite) is therefore computed again
// from the stored weights alone.
#pragma once

#include <cstdint>

#include "cuda/expand_share.h"
#include "cuda/expand_sums.h"
#include "cuda/types.h"

namespace fanin::cuda {

template <typename Samples>
class ExpandKernel : ExpandTile<typename Samples::X> {
  using X = typename Samples::X;
  using Args = typename Samples::Args;
  using Tile = ExpandTile<X>;
  using Element = typename Tile::Element;
  static constexpr int kTile = Samples::kTile;
  static constexpr int kSteps = Tile::kSteps;
  static constexpr int kVectorWords = Tile::kVectorWords;
  static constexpr int kImageBytes = Tile::kImageBytes;
  static_assert(kTile % 8 == 0 && kTile <= Tile::kMaxTile, "samples of a tile");
  static constexpr int kWarpTiles = expand_warp_tiles(kTile);
  static constexpr int kColumnGroups = kTile / 8;  // of the second operand
  // As many as the registers allow.
  static constexpr int kStepsAtOnce = kWarpTiles == 1 ? kSteps : kTile < 128 ? 2 : 1;
  // Vectors of a lane that are loaded one chunk ahead, in all 512 words, a quarter of a tile. At
  // 128 samples there are registers for half of them, which is enough for the densities that pay
  // there.
  static constexpr int kAhead = kTile < 128 ? 4 : 2;

  // Words of a tile that are being loaded.
  struct Words {
    int start;
    int end;
    int next_end;  // of the next chunk's, so that its words need not wait for it
    Raw<16> ahead[kAhead];
  };

  // Words that lie in the image, with two places in each number.
  struct Stored {
    int start;
    int count;  // of vectors
    uint32_t places[kAhead][2];
  };

 public:
  static constexpr int kMaxThreads = 256;
  static constexpr int kMinBlocks = kTile <= 32 ? 2 : 1;

  template <typename Context>
  static FANIN_INLINE void run(const Context& context, const Args& args) {
    const ExpandShare share = share_of(context, args);
    for (int64_t tile = context.block_y(); tile * kTile < args.batch; tile += context.grid_y()) {
      float sums[kWarpTiles][kColumnGroups][4] = {};
      const Samples samples(context, args, share, tile * kTile);
      multiply(context, args, share, samples, sums);
      ExpandSums<Samples>::put(context, share, sums);
      meet(context, args);
      ExpandSums<Samples>::finish(context, args, share, samples);
      if ((tile + context.grid_y()) * kTile < args.batch) meet(context, args);
    }
    if (args.cluster > 1) context.cluster_leave();
  }

 private:
  template <typename Context>
  static FANIN_INLINE void meet(const Context& context, const Args& args) {
    if (args.cluster > 1) {
      context.cluster_sync();
    } else {
      context.sync();
    }
  }

  template <typename Context>
  static FANIN_INLINE ExpandShare share_of(const Context& context, const Args& args) {
    const int warp = context.thread() / 32;
    ExpandShare share;
    share.rank = static_cast<int>(context.block_x() % args.cluster);
    share.block_parts = args.parts / args.cluster;
    share.row_warps = context.threads() / 32 / share.block_parts;
    share.block_part = warp / share.row_warps;
    const int block = static_cast<int>(context.block_x() / args.cluster);
    const int block_tiles = share.row_warps * kWarpTiles;
    const int group_blocks = (args.group_tiles + block_tiles - 1) / block_tiles;
    share.group = block / group_blocks;
    share.end_tile = (share.group + 1) * args.group_tiles;
    share.block_tile = share.group * args.group_tiles + block % group_blocks * block_tiles;
    share.tile = share.block_tile + warp % share.row_warps * kWarpTiles;
    share.steps = (args.chunks + args.parts - 1) / args.parts;
    share.chunk = first_chunk(args, share, share.block_part);
    share.last = first_chunk(args, share, share.block_part + 1);
    return share;
  }

  static FANIN_INLINE int first_chunk(const Args& args, const ExpandShare& share, int block_part) {
    const int first = (share.rank * share.block_parts + block_part) * share.steps;
    return first < args.chunks ? first : args.chunks;
  }

  static FANIN_INLINE int samples_offset(const ExpandShare& share) {
    return share.row_warps * share.block_parts * kWarpTiles * kImageBytes;
  }

  template <typename Context>
  static FANIN_INLINE void multiply(const Context& context, const Args& args,
                                    const ExpandShare& share, const Samples& samples,
                                    float (&sums)[kWarpTiles][kColumnGroups][4]) {
    Words words[kWarpTiles];
    FANIN_UNROLL
    for (int t = 0; t < kWarpTiles; ++t) {
      const int tile = share.tile + t;
      // A tile's words follow those of the chunk before, in order of the starts.
      words[t] = load_words(context, args, share, tile, share.chunk,
                            end_of(context, args, share, tile, share.chunk - 1),
                            end_of(context, args, share, tile, share.chunk));
    }
    const int ahead = args.stages - 1;
    FANIN_ROLLED
    for (int step = 0; step < ahead; ++step) {
      if (step < share.steps) stage(context, args, share, samples, step, step);
      context.copy_commit();
    }
    FANIN_UNROLL
    for (int t = 0; t < kWarpTiles; ++t) clear(context, t);

    int slot = 0;
    FANIN_ROLLED
    for (int step = 0; step < share.steps; ++step) {
      context.copy_wait(ahead - 1);
      // The samples of this step are there, and all warps are done with those of the step before.
      context.sync();
      const int free = slot == 0 ? ahead : slot - 1;
      if (step + ahead < share.steps) stage(context, args, share, samples, step + ahead, free);
      context.copy_commit();
      const int chunk = share.chunk + step;
      if (chunk < share.last) add_chunk(context, args, share, words, chunk, slot, sums);
      slot = slot == ahead ? 0 : slot + 1;
    }
    context.copy_wait(0);
    context.sync();  // the sums take the place of images and samples
  }

  template <typename Context>
  static FANIN_INLINE auto image_of(const Context& context, int tile) {
    const int number = context.thread() / 32 * kWarpTiles + tile;
    return context.template shared<typename Tile::Element>(number * kImageBytes,
                                                           Tile::kImage + Tile::kPadding);
  }

  template <typename Context>
  static FANIN_INLINE auto operands_of(const Context& context, int tile) {
    const int number = context.thread() / 32 * kWarpTiles + tile;
    return context.template shared<Raw<16>>(number * kImageBytes, kSteps * 32);
  }

  template <typename Context>
  static FANIN_INLINE void clear(const Context& context, int tile) {
    const auto image = operands_of(context, tile);
    FANIN_UNROLL
    for (int k = 0; k < kSteps; ++k)
      image.store(k * 32 + context.thread() % 32, Raw<16>{{0, 0, 0, 0}});
  }

  // Where the words of a tile end in a chunk; 0 past the last chunk of the share or the last tile.
  template <typename Context>
  static FANIN_INLINE int end_of(const Context& context, const Args& args, const ExpandShare& share,
                                 int tile, int chunk) {
    if (tile >= share.end_tile || chunk >= share.last) return 0;
    return expand_start_of(context, args, static_cast<int64_t>(tile) * args.chunks + chunk + 1);
  }

  // Begins to load the words of a tile that end there.
  template <typename Context>
  static FANIN_INLINE Words load_words(const Context& context, const Args& args,
                                       const ExpandShare& share, int tile, int chunk, int start,
                                       int end) {
    Words words;
    words.start = start;
    words.end = end;
    words.next_end = end_of(context, args, share, tile, chunk + 1);
    FANIN_UNROLL
    for (int v = 0; v < kAhead; ++v) {
      const int vector = start + v * 32 + context.thread() % 32;
      words.ahead[v] = Raw<16>{{0, 0, 0, 0}};
      if (vector < end) words.ahead[v] = expand_vector_at(context, args, vector);
    }
    return words;
  }

  // Calls visit(place, value) for the words of the lane beyond those that were loaded ahead.
  template <typename Context, typename Visit>
  static FANIN_INLINE void visit_others(const Context& context, const Args& args, int start,
                                        int count, const Visit& visit) {
    FANIN_ROLLED
    for (int vector = kAhead * 32 + context.thread() % 32; vector < count; vector += 32) {
      const Raw<16> four = expand_vector_at(context, args, start + vector);
      FANIN_UNROLL
      for (int i = 0; i < kVectorWords; ++i)
        visit(Tile::place_in(four.words[i]), Tile::element_in(four.words[i]));
    }
  }

  // Expands words into the image, which is zero.
  template <typename Context>
  static FANIN_INLINE Stored expand(const Context& context, const Args& args, const Words& words,
                                    int tile) {
    const auto image = image_of(context, tile);
    Stored stored;
    stored.start = words.start;
    stored.count = words.end - words.start;
    FANIN_UNROLL
    for (int v = 0; v < kAhead; ++v) {
      const uint32_t (&four)[4] = words.ahead[v].words;
      // Otherwise the compiler would keep the four words, in twice the registers.
      stored.places[v][0] = context.opaque((four[0] & 0xffff) | four[1] << 16);
      stored.places[v][1] = context.opaque((four[2] & 0xffff) | four[3] << 16);
      if (v * 32 + context.thread() % 32 < stored.count) {
        FANIN_UNROLL
        for (int i = 0; i < kVectorWords; ++i)
          image.store(Tile::place_in(four[i]), Tile::element_in(four[i]));
      }
    }
    visit_others(context, args, stored.start, stored.count,
                 [&](int place, Element value) { image.store(place, value); });
    return stored;
  }

  // Makes the image zero again.
  template <typename Context>
  static FANIN_INLINE void erase(const Context& context, const Args& args, const Stored& stored,
                                 int tile) {
    const auto image = image_of(context, tile);
    FANIN_UNROLL
    for (int v = 0; v < kAhead; ++v) {
      if (v * 32 + context.thread() % 32 < stored.count) {
        FANIN_UNROLL
        for (int i = 0; i < kVectorWords; ++i)
          image.store(Tile::place_in(stored.places[v][i / 2] >> (16 * (i % 2)) & 0xffff),
                      Element{0});
      }
    }
    visit_others(context, args, stored.start, stored.count,
                 [&](int place, Element) { image.store(place, Element{0}); });
  }

  // Adds the products of a chunk, and begins to load the words of the next one.
  template <typename Context>
  static FANIN_INLINE void add_chunk(const Context& context, const Args& args,
                                     const ExpandShare& share, Words (&words)[kWarpTiles],
                                     int chunk, int slot,
                                     float (&sums)[kWarpTiles][kColumnGroups][4]) {
    Stored stored[kWarpTiles];
    int all = 0;
    FANIN_UNROLL
    for (int t = 0; t < kWarpTiles; ++t) {
      stored[t] = expand(context, args, words[t], t);
      all += stored[t].count;
      words[t] = load_words(context, args, share, share.tile + t, chunk + 1, words[t].end,
                            words[t].next_end);
    }
    if (all == 0) return;  // the same in all lanes
    context.warp_sync();
    const int samples =
        samples_offset(share) + (slot * share.block_parts + share.block_part) * Samples::kBytes;
    FANIN_ROLLED
    for (int first = 0; first < kSteps; first += kStepsAtOnce) {
      FANIN_UNROLL
      for (int k = first; k < first + kStepsAtOnce; ++k) {
        Raw<16> weights[kWarpTiles];
        FANIN_UNROLL
        for (int t = 0; t < kWarpTiles; ++t)
          weights[t] = operands_of(context, t).load(k * 32 + context.thread() % 32);
        add_step(context, samples, k, weights, sums);
      }
    }
    context.warp_sync();  // all lanes have read the images
    FANIN_UNROLL
    for (int t = 0; t < kWarpTiles; ++t) erase(context, args, stored[t], t);
  }

  // One step of the tensor cores for every group of eight samples.
  template <typename Context>
  static FANIN_INLINE void add_step(const Context& context, int samples, int k,
                                    const Raw<16> (&weights)[kWarpTiles],
                                    float (&sums)[kWarpTiles][kColumnGroups][4]) {
    if constexpr (kColumnGroups == 1) {
      const Raw<8> columns = Samples::template operands<1>(context, samples, k, 0);
      multiply_group(context, weights, columns.words[0], columns.words[1], 0, sums);
    } else {
      FANIN_UNROLL
      for (int group = 0; group < kColumnGroups; group += 2) {
        const Raw<16> columns = Samples::template operands<2>(context, samples, k, group);
        multiply_group(context, weights, columns.words[0], columns.words[1], group, sums);
        multiply_group(context, weights, columns.words[2], columns.words[3], group + 1, sums);
      }
    }
  }

  template <typename Context>
  static FANIN_INLINE void multiply_group(const Context& context,
                                          const Raw<16> (&weights)[kWarpTiles], uint32_t low,
                                          uint32_t high, int group,
                                          float (&sums)[kWarpTiles][kColumnGroups][4]) {
    if constexpr (Tile::kTf32) {
      low = tf32_bits(low);
      high = tf32_bits(high);
    }
    FANIN_UNROLL
    for (int t = 0; t < kWarpTiles; ++t)
      context.template mma<X>(weights[t], low, high, sums[t][group]);
  }

  // Copies a chunk of every part's samples into a slot.
  template <typename Context>
  static FANIN_INLINE void stage(const Context& context, const Args& args, const ExpandShare& share,
                                 const Samples& samples, int step, int slot) {
    const int base = samples_offset(share) + slot * share.block_parts * Samples::kBytes;
    FANIN_UNROLL_BY(Samples::kItemsAtOnce)
    for (int i = context.thread(); i < share.block_parts * Samples::kItems;
         i += context.threads()) {
      const int part = i / Samples::kItems;
      const int chunk = first_chunk(args, share, part) + step;
      if (chunk < first_chunk(args, share, part + 1))
        samples.copy(context, args, i % Samples::kItems, chunk, base + part * Samples::kBytes);
    }
  }
};

}  // namespace fanin::cuda
