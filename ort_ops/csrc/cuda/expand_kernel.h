// Batches of 16-bit types: a thread program that reads weights as sparse and multiplies them as
// dense on tensor cores.
//
// The weights are cut into tiles of 16 rows x 128 columns, each a list of words: a value and its
// place in the tile's image, which has the order in which lanes hold the first operand of
// mma.m16n8k16. Packing deals the words so that those that a warp stores at once lie in different
// banks. A warp has its own tiles and images:
//
//   for each chunk of 128 columns:
//     barrier: the samples of this chunk have arrived | copies of a later chunk begin
//     words to the image | image and samples to the tensor cores | zeros where words were
//   sums of all parts of the columns, in their order, bias, residual, clip
//
// The parts of the columns belong to the blocks of a cluster or, without clusters, to the warps of
// a block. Tensor cores also multiply the zeros, so an infinity or NaN in x makes the sums of all
// rows NaN; a sum that is NaN is therefore computed again from the stored weights alone.
#pragma once

#include <cstdint>

#include "cuda/expand_shape.h"
#include "cuda/expand_sums.h"
#include "cuda/types.h"

namespace fanin::cuda {

// kTile: samples at a time. kVectorX: rows of x begin at multiples of 16 bytes.
template <typename X, int kTile, bool kVectorX>
class ExpandKernel : ExpandShape {
  static_assert(sizeof(X) == 2, "tensor cores take 16 bits");
  static_assert(kTile % 8 == 0 && kTile <= kMaxTile, "samples of a tile");
  static constexpr int kWarpTiles = expand_warp_tiles(kTile);
  static constexpr int kColumnGroups = kTile / 8;  // of the second operand
  static constexpr int kUnits = kChunkBytes / 16;  // of a sample's chunk
  // As many as the registers allow.
  static constexpr int kStepsAtOnce = kWarpTiles == 1 ? kSteps : 2;
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
  static FANIN_INLINE void run(const Context& context, const ExpandArgs& args) {
    const ExpandShare share = share_of(context, args);
    for (int64_t tile = context.block_y(); tile * kTile < args.batch; tile += context.grid_y()) {
      float sums[kWarpTiles][kColumnGroups][4] = {};
      multiply(context, args, share, tile * kTile, sums);
      ExpandSums<X, kTile>::put(context, share, sums);
      meet(context, args);
      ExpandSums<X, kTile>::finish(context, args, share, tile * kTile);
      if ((tile + context.grid_y()) * kTile < args.batch) meet(context, args);
    }
    if (args.cluster > 1) context.cluster_leave();
  }

 private:
  template <typename Context>
  static FANIN_INLINE void meet(const Context& context, const ExpandArgs& args) {
    if (args.cluster > 1) {
      context.cluster_sync();
    } else {
      context.sync();
    }
  }

  template <typename Context>
  static FANIN_INLINE ExpandShare share_of(const Context& context, const ExpandArgs& args) {
    const int warp = context.thread() / 32;
    ExpandShare share;
    share.rank = static_cast<int>(context.block_x() % args.cluster);
    share.block_parts = args.parts / args.cluster;
    share.row_warps = context.threads() / 32 / share.block_parts;
    share.block_part = warp / share.row_warps;
    share.block_tile =
        static_cast<int>(context.block_x() / args.cluster) * share.row_warps * kWarpTiles;
    share.tile = share.block_tile + warp % share.row_warps * kWarpTiles;
    share.steps = (args.chunks + args.parts - 1) / args.parts;
    share.chunk = first_chunk(args, share, share.block_part);
    share.last = first_chunk(args, share, share.block_part + 1);
    return share;
  }

  static FANIN_INLINE int first_chunk(const ExpandArgs& args, const ExpandShare& share,
                                      int block_part) {
    const int first = (share.rank * share.block_parts + block_part) * share.steps;
    return first < args.chunks ? first : args.chunks;
  }

  static FANIN_INLINE int samples_offset(const ExpandShare& share) {
    return share.row_warps * share.block_parts * kWarpTiles * kImageBytes;
  }

  template <typename Context>
  static FANIN_INLINE void multiply(const Context& context, const ExpandArgs& args,
                                    const ExpandShare& share, int64_t sample,
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
      if (step < share.steps) stage(context, args, share, sample, step, step);
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
      if (step + ahead < share.steps) stage(context, args, share, sample, step + ahead, free);
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
    return context.template shared<uint16_t>(number * kImageBytes, kImage + kPadding);
  }

  template <typename Context>
  static FANIN_INLINE auto operands_of(const Context& context, int tile) {
    const int number = context.thread() / 32 * kWarpTiles + tile;
    return context.template shared<Raw<16>>(number * kImageBytes, kImage / 8);
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
  static FANIN_INLINE int end_of(const Context& context, const ExpandArgs& args,
                                 const ExpandShare& share, int tile, int chunk) {
    if (tile >= args.tiles || chunk >= share.last) return 0;
    return context.template global<int32_t>(
        args.starts, static_cast<int64_t>(args.tiles) * args.chunks +
                         1)[static_cast<int64_t>(tile) * args.chunks + chunk + 1];
  }

  // Begins to load the words of a tile that end there.
  template <typename Context>
  static FANIN_INLINE Words load_words(const Context& context, const ExpandArgs& args,
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
  static FANIN_INLINE void visit_others(const Context& context, const ExpandArgs& args, int start,
                                        int count, const Visit& visit) {
    FANIN_ROLLED
    for (int vector = kAhead * 32 + context.thread() % 32; vector < count; vector += 32) {
      const Raw<16> four = expand_vector_at(context, args, start + vector);
      FANIN_UNROLL
      for (int i = 0; i < kVectorWords; ++i)
        visit(static_cast<int>(four.words[i] & 0xffff), static_cast<uint16_t>(four.words[i] >> 16));
    }
  }

  // Expands words into the image, which is zero.
  template <typename Context>
  static FANIN_INLINE Stored expand(const Context& context, const ExpandArgs& args,
                                    const Words& words, int tile) {
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
          image.store(static_cast<int>(four[i] & 0xffff), static_cast<uint16_t>(four[i] >> 16));
      }
    }
    visit_others(context, args, stored.start, stored.count,
                 [&](int place, uint16_t value) { image.store(place, value); });
    return stored;
  }

  // Makes the image zero again.
  template <typename Context>
  static FANIN_INLINE void erase(const Context& context, const ExpandArgs& args,
                                 const Stored& stored, int tile) {
    const auto image = image_of(context, tile);
    FANIN_UNROLL
    for (int v = 0; v < kAhead; ++v) {
      if (v * 32 + context.thread() % 32 < stored.count) {
        FANIN_UNROLL
        for (int i = 0; i < kVectorWords; ++i)
          image.store(static_cast<int>(stored.places[v][i / 2] >> (16 * (i % 2)) & 0xffff),
                      uint16_t{0});
      }
    }
    visit_others(context, args, stored.start, stored.count,
                 [&](int place, uint16_t) { image.store(place, uint16_t{0}); });
  }

  // Adds the products of a chunk, and begins to load the words of the next one.
  template <typename Context>
  static FANIN_INLINE void add_chunk(const Context& context, const ExpandArgs& args,
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
        samples_offset(share) + (slot * share.block_parts + share.block_part) * kTile * kChunkBytes;
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
    const int lane = context.thread() % 32;
    // A lane names a row of 16 bytes: of eight samples, columns 0-7, then 8-15; then of the next
    // eight samples.
    const int unit = (k * 2 + lane / 8 % 2) ^ lane % 8;
    const int row = samples + lane % 8 * kChunkBytes + unit * 16;
    if constexpr (kColumnGroups == 1) {
      const Raw<8> columns = context.template load_matrices<2>(row);
      multiply_group(context, weights, columns.words[0], columns.words[1], 0, sums);
    } else {
      FANIN_UNROLL
      for (int pair = 0; pair < kColumnGroups / 2; ++pair) {
        const Raw<16> columns =
            context.template load_matrices<4>(row + (pair * 16 + lane / 16 * 8) * kChunkBytes);
        multiply_group(context, weights, columns.words[0], columns.words[1], 2 * pair, sums);
        multiply_group(context, weights, columns.words[2], columns.words[3], 2 * pair + 1, sums);
      }
    }
  }

  template <typename Context>
  static FANIN_INLINE void multiply_group(const Context& context,
                                          const Raw<16> (&weights)[kWarpTiles], uint32_t low,
                                          uint32_t high, int group,
                                          float (&sums)[kWarpTiles][kColumnGroups][4]) {
    FANIN_UNROLL
    for (int t = 0; t < kWarpTiles; ++t)
      context.template mma<X>(weights[t], low, high, sums[t][group]);
  }

  // Copies a chunk of every part's samples into a slot. Columns and samples outside x are zeros.
  // The units of a sample are permuted, so that eight samples' units lie in different banks.
  template <typename Context>
  static FANIN_INLINE void stage(const Context& context, const ExpandArgs& args,
                                 const ExpandShare& share, int64_t sample, int step, int slot) {
    const int base = samples_offset(share) + slot * share.block_parts * kTile * kChunkBytes;
    FANIN_ROLLED
    for (int i = context.thread(); i < share.block_parts * kTile * kUnits; i += context.threads()) {
      const int part = i / (kTile * kUnits), n = i / kUnits % kTile, unit = i % kUnits;
      const int chunk = first_chunk(args, share, part) + step;
      if (chunk >= first_chunk(args, share, part + 1)) continue;
      const int column = chunk * kColumns + unit * 8;
      int there = sample + n < args.batch ? args.in_features - column : 0;
      there = there < 0 ? 0 : there > 8 ? 8 : there;
      const int64_t at = there > 0 ? (sample + n) * args.in_features + column : 0;
      const int to = base + (part * kTile + n) * kChunkBytes + (unit ^ n % 8) * 16;
      copy_unit(context, args, at, there, to);
    }
  }

  template <typename Context>
  static FANIN_INLINE void copy_unit(const Context& context, const ExpandArgs& args, int64_t at,
                                     int there, int to) {
    const int64_t count = args.batch * args.in_features;
    if constexpr (kVectorX) {
      context.template copy_async16<X>(args.x, count, at, there, to);
    } else {
      const auto x = context.template global<X>(args.x, count);
      Raw<16> eight{{0, 0, 0, 0}};
      FANIN_UNROLL
      for (int j = 0; j < 8; ++j)
        if (j < there) eight.words[j / 2] |= stored_bits(x[at + j]) << (16 * (j % 2));
      context.template shared<Raw<16>>(to, 1).store(0, eight);
    }
  }
};

}  // namespace fanin::cuda
