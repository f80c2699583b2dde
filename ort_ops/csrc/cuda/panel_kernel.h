// Batches: a thread program that holds a tile of x in shared memory, sample beside sample, and uses
// every weight for all samples of the tile.
//
// A block has a tile of 32 samples (64 of a 16-bit type: a column is 128 bytes) and some groups of
// four output rows. x passes through a ring of chunks of 128 columns; it is transposed on its way
// in. A warp works on one group at a time: eight lanes a row, 16 bytes of samples a lane, so that
// a quarter of the warp reads one column without bank conflicts. The packer has decided at which
// step a weight is used (panel_layout.h), so all four rows go on together.
//
//   step t:  load chunk t + 1 of x to registers | units of step t: 4 rows x 4 entries each
//            store the chunk to the ring        | barrier
#pragma once

#include <cstdint>

#include "cuda/types.h"

namespace fanin::cuda {

struct PanelShape {
  static constexpr int kRows = 4;       // of a group
  static constexpr int kEntries = 4;    // of a row in a unit
  static constexpr int kColumns = 128;  // of a chunk
  static constexpr int kColumnBytes = 128;
  // 16 bytes of gap spread columns over the banks where the tile is transposed.
  static constexpr int kStride = kColumnBytes + 16;
  static constexpr int kMinWarps = 4;
};

struct PanelArgs {
  const void* values;   // [units] of 4 rows x 4 float32
  const void* offsets;  // [units] of 4 rows x 4 uint16: the column's place in the ring / 16 bytes
  const int32_t* ends;  // [busy_groups, steps]: the unit behind the group's units of a step
  const int32_t* outputs;  // [groups, 4]: output rows; -1 for none
  const float* bias;       // [out_features]
  const void* x;           // [batch, in_features]
  const void* residual;    // [batch, out_features] or null
  void* y;                 // [batch, out_features]
  int64_t batch;
  int32_t in_features;
  int32_t out_features;
  int32_t units;
  int32_t groups;
  int32_t busy_groups;  // the first ones; the others have no units
  int32_t steps;        // chunks of x
  int32_t ring;         // chunks that the ring holds
  float clip_min;
  float clip_max;
};

// The ring, then one column of zeros, which padding reads.
inline int64_t panel_shared_bytes(int64_t ring) {
  return (ring * PanelShape::kColumns + 1) * PanelShape::kStride;
}

// kGroups: that a warp works on in turn, all of them between two barriers. kVectorX: x lies at a
// multiple of four elements, and so do its rows. Blocks have a multiple of four warps.
template <typename X, int kGroups, bool kVectorX>
class PanelKernel : PanelShape {
  static constexpr int kLaneSamples = 16 / static_cast<int>(sizeof(X));
  static constexpr int kWordSamples = 4 / static_cast<int>(sizeof(X));
  // Pieces of a chunk, 32 columns x 4 words, and those that one warp of the smallest block takes.
  static constexpr int kPieces = kColumns / 32 * (kColumnBytes / 16);
  static constexpr int kMaxPieces =
      kPieces / (kGroups == 1 && kVectorX ? kMinWarps : 2 * kMinWarps);
  // Units that are on their way while one is worked on.
  static constexpr int kAhead = kGroups == 1 ? 2 : 1;

  struct Unit {
    Raw<16> values;
    Raw<8> offsets;
  };

  struct Work {
    int unit;
    int end;             // of this step
    int next_end;        // of the next
    Unit ahead[kAhead];  // a unit's place is its number modulo kAhead
    float sums[kLaneSamples];
  };

 public:
  static constexpr int kMaxThreads = 512;
  static constexpr int kMinBlocks = 1;
  static constexpr int kTile = kColumnBytes / static_cast<int>(sizeof(X));

  template <typename Context>
  static FANIN_INLINE void run(const Context& context, const PanelArgs& args) {
    const int64_t first = context.block_x() * (context.threads() / 32) * kGroups;
    for (int64_t tile = context.block_y(); tile * kTile < args.batch; tile += context.grid_y()) {
      Work work[kGroups];
      FANIN_UNROLL
      for (int i = 0; i < kGroups; ++i) FANIN_UNROLL
      for (int s = 0; s < kLaneSamples; ++s) work[i].sums[s] = 0;
      if (first < args.busy_groups) add_all(context, args, first, tile * kTile, work);
      finish(context, args, first, tile * kTile, work);
    }
  }

 private:
  template <typename Context>
  static FANIN_INLINE int group_of(const Context& context, int64_t first, int i) {
    const int warps = context.threads() / 32;
    return static_cast<int>(first) + i * warps + context.thread() / 32;
  }

  template <typename Context>
  static FANIN_INLINE void add_all(const Context& context, const PanelArgs& args, int64_t first,
                                   int64_t sample, Work (&work)[kGroups]) {
    const auto ends = context.template global<int32_t>(
        args.ends, static_cast<int64_t>(args.busy_groups) * args.steps);
    FANIN_UNROLL
    for (int i = 0; i < kGroups; ++i) {
      const int group = group_of(context, first, i);
      work[i].unit = work[i].next_end = 0;
      if (group < args.busy_groups) {
        const int64_t at = static_cast<int64_t>(group) * args.steps;
        work[i].unit = at == 0 ? 0 : ends[at - 1];
        work[i].next_end = ends[at];
        const int odd = kAhead == 2 ? work[i].unit % 2 : 0;
        FANIN_UNROLL
        for (int place = 0; place < kAhead; ++place)
          work[i].ahead[place] = load_unit(context, args, work[i].unit + (place == odd ? 0 : 1));
      }
    }

    context.sync();  // everybody is done with the tile before
    const auto zeros = context.template shared<uint32_t>(
        static_cast<int64_t>(args.ring) * kColumns * kStride, kStride / 4);
    if (context.thread() < kStride / 4) zeros.store(context.thread(), 0);
    Raw<16> pieces[kMaxPieces];
    load_chunk(context, args, sample, 0, pieces);
    store_chunk(context, args, 0, pieces);
    context.sync();

    for (int step = 0; step < args.steps; ++step) {
      const bool more = step + 1 < args.steps;
      if (more) load_chunk(context, args, sample, step + 1, pieces);
      FANIN_UNROLL
      for (int i = 0; i < kGroups; ++i) {
        work[i].end = work[i].next_end;
        const int group = group_of(context, first, i);
        if (more && group < args.busy_groups)
          work[i].next_end = ends[static_cast<int64_t>(group) * args.steps + step + 1];
      }
      FANIN_UNROLL
      for (int i = 0; i < kGroups; ++i)
        while (work[i].unit < work[i].end) {
          // Each place has code of its own: moving a unit that is on its way would wait for it.
          if (kAhead == 1 || work[i].unit % 2 == 0) {
            add_unit<0>(context, args, work[i]);
          } else {
            add_unit<kAhead - 1>(context, args, work[i]);
          }
        }
      if (more) store_chunk(context, args, (step + 1) % args.ring, pieces);
      context.sync();
    }
  }

  template <typename Context>
  static FANIN_INLINE Unit load_unit(const Context& context, const PanelArgs& args, int unit) {
    // Behind the last one stands nothing that anybody uses.
    const int64_t there = unit < args.units ? unit : args.units - 1;
    const int64_t at = there * kRows + context.thread() % 32 / 8;
    const int64_t count = static_cast<int64_t>(args.units) * kRows;
    return {context.template global<Raw<16>>(args.values, count)[at],
            context.template global<Raw<8>>(args.offsets, count)[at]};
  }

  template <int kPlace, typename Context>
  static FANIN_INLINE void add_unit(const Context& context, const PanelArgs& args, Work& work) {
    const Unit& unit = work.ahead[kPlace];
    const auto ring = context.template shared<Raw<16>>(
        0, (static_cast<int64_t>(args.ring) * kColumns + 1) * (kStride / 16));
    FANIN_UNROLL
    for (int entry = 0; entry < kEntries; ++entry) {
      const float weight = float_of(unit.values.words[entry]);
      const int offset = static_cast<int>(part_of<2>(unit.offsets, entry));
      const Raw<16> x = ring.load(offset + context.thread() % 8);
      FANIN_UNROLL
      for (int s = 0; s < kLaneSamples; ++s)
        work.sums[s] = context.fma(weight, widen_bits<X>(part_of<sizeof(X)>(x, s)), work.sums[s]);
    }
    work.ahead[kPlace] = load_unit(context, args, work.unit + kAhead);
    ++work.unit;
  }

  // A piece is 32 columns of 4 words of the tile: a lane has 4 columns of one word. Blocks are of
  // whole sets of four warps, so all pieces of a warp have the same columns. Columns and samples
  // that x lacks are zeros.
  template <typename Context>
  static FANIN_INLINE int column_of(const Context& context) {
    return context.thread() / 32 % 4 * 32 + context.thread() % 8 * 4;
  }
  template <typename Context>
  static FANIN_INLINE int word_of(const Context& context) {
    return context.thread() / 128 * 4 + context.thread() % 32 / 8;
  }

  template <typename Context>
  static FANIN_INLINE void load_chunk(const Context& context, const PanelArgs& args, int64_t sample,
                                      int chunk, Raw<16> (&pieces)[kMaxPieces]) {
    const int warps = context.threads() / 32;
    const int64_t column = static_cast<int64_t>(chunk) * kColumns + column_of(context);
    const int64_t step = static_cast<int64_t>(warps) * kWordSamples;
    int64_t row = sample + word_of(context) * kWordSamples;
    FANIN_UNROLL
    for (int i = 0; i < kMaxPieces; ++i, row += step) {
      if (i * warps + context.thread() / 32 >= kPieces) continue;
      if constexpr (sizeof(X) == 4) {
        pieces[i] = load_four(context, args, row, column);
      } else {
        const Raw<8> first = load_four(context, args, row, column);
        const Raw<8> second = load_four(context, args, row + 1, column);
        pieces[i] = {{first.words[0], first.words[1], second.words[0], second.words[1]}};
      }
    }
  }

  // The words of four columns of a piece: of 16-bit types two samples beside each other. Not done
  // when they are loaded, since it waits for them.
  static FANIN_INLINE Raw<16> by_column(const Raw<16>& piece) {
    if constexpr (sizeof(X) == 4) {
      return piece;
    } else {
      return {{(piece.words[0] & 0xffff) | piece.words[2] << 16,
               piece.words[0] >> 16 | (piece.words[2] & 0xffff0000u),
               (piece.words[1] & 0xffff) | piece.words[3] << 16,
               piece.words[1] >> 16 | (piece.words[3] & 0xffff0000u)}};
    }
  }

  // Four neighbouring columns of a sample.
  template <typename Context>
  static FANIN_INLINE Raw<4 * sizeof(X)> load_four(const Context& context, const PanelArgs& args,
                                                   int64_t sample, int64_t column) {
    using Four = Raw<4 * sizeof(X)>;
    Four four;
    FANIN_UNROLL
    for (int w = 0; w < Four::kWords; ++w) four.words[w] = 0;
    const int64_t at = sample * args.in_features + column;
    const int64_t count = args.batch * args.in_features;
    if constexpr (kVectorX) {
      if (sample < args.batch && column < args.in_features)
        four = context.template global<Four>(args.x, count / 4)[at / 4];
    } else {
      const auto x = context.template global<X>(args.x, count);
      const int64_t there = sample < args.batch ? args.in_features - column : 0;
      FANIN_UNROLL
      for (int j = 0; j < 4; ++j) {
        const uint32_t bits = j < there ? stored_bits(x[at + j]) : 0;
        if constexpr (sizeof(X) == 4) {
          four.words[j] = bits;
        } else {
          four.words[j / 2] |= bits << (16 * (j % 2));
        }
      }
    }
    return four;
  }

  template <typename Context>
  static FANIN_INLINE void store_chunk(const Context& context, const PanelArgs& args, int slot,
                                       const Raw<16> (&pieces)[kMaxPieces]) {
    const int warps = context.threads() / 32, lane = context.thread() % 32;
    const auto ring = context.template shared<uint32_t>(
        0, static_cast<int64_t>(args.ring) * kColumns * (kStride / 4));
    // Lanes begin at different columns of their four, or those that are 16 words apart would meet
    // in one bank: 36 * 4 = 16 modulo 32.
    const int turn = lane % 8 / 2;
    const int first = (slot * kColumns + column_of(context)) * (kStride / 4) + word_of(context);
    FANIN_UNROLL
    for (int i = 0; i < kMaxPieces; ++i) {
      if (i * warps + context.thread() / 32 >= kPieces) continue;
      Raw<16> turned = by_column(pieces[i]);
      turned = turn & 1 ? rotated<1>(turned) : turned;
      turned = turn & 2 ? rotated<2>(turned) : turned;
      FANIN_UNROLL
      for (int j = 0; j < 4; ++j)
        ring.store(first + (j + turn) % 4 * (kStride / 4) + i * warps, turned.words[j]);
    }
  }

  template <int kBy>
  static FANIN_INLINE Raw<16> rotated(const Raw<16>& raw) {
    return {{raw.words[kBy], raw.words[(kBy + 1) % 4], raw.words[(kBy + 2) % 4],
             raw.words[(kBy + 3) % 4]}};
  }

  template <typename Context>
  static FANIN_INLINE void finish(const Context& context, const PanelArgs& args, int64_t first,
                                  int64_t sample, const Work (&work)[kGroups]) {
    const int64_t count = args.batch * args.out_features;
    const auto outputs =
        context.template global<int32_t>(args.outputs, static_cast<int64_t>(args.groups) * kRows);
    const auto bias = context.template global<float>(args.bias, args.out_features);
    const auto y = context.template output<X>(args.y, count);
    FANIN_UNROLL
    for (int i = 0; i < kGroups; ++i) {
      const int group = group_of(context, first, i);
      if (group >= args.groups) continue;
      const int64_t output =
          outputs[static_cast<int64_t>(group) * kRows + context.thread() % 32 / 8];
      if (output < 0) continue;
      const float start = bias[output];
      FANIN_UNROLL
      for (int s = 0; s < kLaneSamples; ++s) {
        const int64_t row = sample + context.thread() % 8 * kLaneSamples + s;
        if (row >= args.batch) continue;
        const int64_t at = row * args.out_features + output;
        float value = work[i].sums[s] + start;
        if (args.residual) value += widen(context.template global<X>(args.residual, count)[at]);
        y.store(at, narrow<X>(clipped(value, args.clip_min, args.clip_max)));
      }
    }
  }
};

}  // namespace fanin::cuda
