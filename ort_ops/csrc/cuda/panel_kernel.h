// Batches: a thread program that holds a part of x in shared memory, with the samples of a column
// side by side, and uses every weight for all samples of its tile.
//
// A tile is 32 samples (64 of a 16-bit type: a column is 128 bytes). The columns of x are cut into
// parts that fit into shared memory besides the sums; the blocks of a cluster share the parts, and
// at the end each block adds the sums of all blocks for some of the samples, in the order of the
// blocks. A block has one or more bands of 32 output rows. In every part, packing has sorted a
// band's rows by their number of weights there and formed groups of four: a warp processes one
// group after another, with eight lanes per row and 16 bytes of samples per lane, so that a quarter
// of the warp reads one column without bank conflicts.
//
//   for each part:  load and transpose x | barrier | units of the groups: 4 rows x 8 entries each
//   cluster barrier | sums of all blocks, bias, residual, clip
#pragma once

#include <cstdint>

#include "cuda/types.h"

namespace fanin::cuda {

struct PanelShape {
  static constexpr int kRows = 4;     // of a group
  static constexpr int kEntries = 8;  // of a row in a unit
  static constexpr int kBandGroups = 8;
  static constexpr int kBandRows = kRows * kBandGroups;
  static constexpr int kColumnBytes = 128;
  // A gap of 16 bytes distributes columns over the banks when the tile is transposed.
  static constexpr int kStride = kColumnBytes + 16;
  static constexpr int kPieceColumns = 32;  // parts have a multiple of them
  static constexpr int kMaxCluster = 8;
};

// A row's entries of a unit: values and, in units of 16 bytes, the offsets of their columns in the
// part.
struct PanelWeights {
  float values[PanelShape::kEntries];
  uint16_t offsets[PanelShape::kEntries];
};

struct PanelArgs {
  const void* weights;     // [units, 4 rows]: PanelWeights
  const int32_t* ends;     // [parts, bands, 8 groups]: the unit behind the group's units
  const uint16_t* places;  // [parts, bands, 8 groups, 4 rows]: the row of the band
  const int32_t* outputs;  // [bands, 32]: output rows; -1 for none
  const float* bias;       // [out_features]
  const void* x;           // [batch, in_features]
  const void* residual;    // [batch, out_features] or null
  void* y;                 // [batch, out_features]
  int64_t batch;
  int32_t in_features;
  int32_t out_features;
  int32_t units;
  int32_t bands;
  int32_t parts;
  int32_t columns;  // of a part
  int32_t cluster;  // blocks that share the parts; at most as many as there are parts
  int32_t bands_per_block;
  float clip_min;
  float clip_max;
};

// Pitch of sums: one more than the samples, which distributes rows over the banks.
inline int64_t panel_sum_bytes(int64_t rows, int64_t tile) { return rows * (tile + 1) * 4; }

// Shared memory: the part of x, one column of zeros for padding, and the sums.
inline int64_t panel_shared_bytes(int64_t columns, int64_t rows, int64_t tile) {
  return (columns + 1) * PanelShape::kStride + panel_sum_bytes(rows, tile);
}

// kVectorX: x and its rows begin at multiples of four elements.
template <typename X, bool kVectorX>
class PanelKernel : PanelShape {
  static constexpr int kLaneSamples = 16 / static_cast<int>(sizeof(X));
  static constexpr int kWordSamples = 4 / static_cast<int>(sizeof(X));
  static constexpr int kPieces = 4;  // of x, that a warp has on their way

  using Unit = Raw<sizeof(PanelWeights)>;

  // The end of a group's units, and the row of its band that the lane computes.
  struct Group {
    int end;
    int place;
  };

  // The state of a warp that processes its groups of a part.
  struct Walk {
    int group;  // counted from the part's first
    int last;   // behind its last group
    int unit;
    Group now;
    Group next;
    Unit ahead;  // the unit, on its way
  };

  // The share of a block.
  struct Share {
    int rank;  // in the cluster
    int band;
    int bands;
    int64_t sample;
  };

 public:
  static constexpr int kMaxThreads = 512;
  static constexpr int kMinBlocks = 1;
  static constexpr int kTile = kColumnBytes / static_cast<int>(sizeof(X));

  template <typename Context>
  static FANIN_INLINE void run(const Context& context, const PanelArgs& args) {
    Share share;
    share.rank = static_cast<int>(context.block_x() % args.cluster);
    share.band = static_cast<int>(context.block_x() / args.cluster) * args.bands_per_block;
    share.bands = args.bands - share.band;
    if (share.bands > args.bands_per_block) share.bands = args.bands_per_block;
    const auto zeros = context.template shared<uint32_t>(
        static_cast<int64_t>(args.columns) * kStride, kStride / 4);
    if (context.thread() < kStride / 4) zeros.store(context.thread(), 0);
    for (int64_t tile = context.block_y(); tile * kTile < args.batch; tile += context.grid_y()) {
      share.sample = tile * kTile;
      for (int part = share.rank; part < args.parts; part += args.cluster) {
        Walk walk = start(context, args, share, part);
        if (part != share.rank) context.sync();  // everybody is done with the part before
        stage(context, args, share, part);
        context.sync();
        walk_through(context, args, share, walk, part == share.rank);
      }
      context.cluster_sync();
      finish(context, args, share);
      if ((tile + context.grid_y()) * kTile < args.batch) context.cluster_sync();
    }
    context.cluster_leave();
  }

 private:
  template <typename Context>
  static FANIN_INLINE Group group_at(const Context& context, const PanelArgs& args, int64_t at) {
    const int64_t groups = static_cast<int64_t>(args.parts) * args.bands * kBandGroups;
    return {context.template global<int32_t>(args.ends, groups)[at],
            context.template global<uint16_t>(
                args.places, groups * kRows)[at * kRows + context.thread() % 32 / 8]};
  }

  template <typename Context>
  static FANIN_INLINE Walk start(const Context& context, const PanelArgs& args, const Share& share,
                                 int part) {
    const int warps = context.threads() / 32, warp = context.thread() / 32;
    const int first = (part * args.bands + share.band) * kBandGroups;
    const int groups = share.bands * kBandGroups;
    Walk walk;
    walk.group = first + groups * warp / warps;
    walk.last = first + groups * (warp + 1) / warps;
    walk.unit = 0;
    if (walk.group == walk.last) return walk;
    if (walk.group > 0) walk.unit = group_at(context, args, walk.group - 1).end;
    walk.now = group_at(context, args, walk.group);
    walk.next = walk.now;
    if (walk.group + 1 < walk.last) walk.next = group_at(context, args, walk.group + 1);
    walk.ahead = load_unit(context, args, walk.unit);
    return walk;
  }

  template <typename Context>
  static FANIN_INLINE Unit load_unit(const Context& context, const PanelArgs& args, int unit) {
    // The value past the last one is never used.
    const int64_t there = unit < args.units ? unit : args.units - 1;
    return context.template global<Unit>(
        args.weights,
        static_cast<int64_t>(args.units) * kRows)[there * kRows + context.thread() % 32 / 8];
  }

  template <typename Context>
  static FANIN_INLINE auto sums_of(const Context& context, const PanelArgs& args, int rank) {
    return context.template cluster_shared<float>(
        rank, static_cast<int64_t>(args.columns + 1) * kStride,
        static_cast<int64_t>(args.bands_per_block) * kBandRows * (kTile + 1));
  }

  template <typename Context>
  static FANIN_INLINE void walk_through(const Context& context, const PanelArgs& args,
                                        const Share& share, Walk& walk, bool first_part) {
    if (walk.group == walk.last) return;
    float sums[kLaneSamples] = {};
    for (;;) {
      while (walk.unit == walk.now.end) {
        put(context, args, share, walk, sums, first_part);
        if (++walk.group == walk.last) return;
        walk.now = walk.next;
        if (walk.group + 1 < walk.last) walk.next = group_at(context, args, walk.group + 1);
      }
      // One unit is loaded while another is computed: the device has too few scoreboards to tell
      // more loads apart, and would wait for all of them.
      const Unit unit = walk.ahead;
      walk.ahead = load_unit(context, args, ++walk.unit);
      add_unit(context, args, unit, sums);
    }
  }

  template <typename Context>
  static FANIN_INLINE void add_unit(const Context& context, const PanelArgs& args, const Unit& unit,
                                    float (&sums)[kLaneSamples]) {
    const auto columns = context.template shared<Raw<16>>(
        0, static_cast<int64_t>(args.columns + 1) * (kStride / 16));
    Raw<16> x[kEntries];
    FANIN_UNROLL
    for (int entry = 0; entry < kEntries; ++entry) {
      const uint32_t offset = unit.words[kEntries + entry / 2] >> (16 * (entry % 2)) & 0xffff;
      x[entry] = columns.load(static_cast<int>(offset) + context.thread() % 8);
    }
    FANIN_UNROLL
    for (int entry = 0; entry < kEntries; ++entry) {
      const float weight = float_of(unit.words[entry]);
      FANIN_UNROLL
      for (int s = 0; s < kLaneSamples; ++s)
        sums[s] = context.fma(weight, widen_bits<X>(part_of<sizeof(X)>(x[entry], s)), sums[s]);
    }
  }

  // Stores the sums of a group and resets them.
  template <typename Context>
  static FANIN_INLINE void put(const Context& context, const PanelArgs& args, const Share& share,
                               const Walk& walk, float (&sums)[kLaneSamples], bool first_part) {
    const auto to = context.template shared<float>(
        static_cast<int64_t>(args.columns + 1) * kStride,
        static_cast<int64_t>(args.bands_per_block) * kBandRows * (kTile + 1));
    const int band = walk.group / kBandGroups % args.bands - share.band;
    const int at =
        (band * kBandRows + walk.now.place) * (kTile + 1) + context.thread() % 8 * kLaneSamples;
    FANIN_UNROLL
    for (int s = 0; s < kLaneSamples; ++s) {
      to.store(at + s, first_part ? sums[s] : to.load(at + s) + sums[s]);
      sums[s] = 0;
    }
  }

  // Loads x in pieces of 32 columns x 4 words of the tile; a lane has 4 columns of one word.
  // Columns and samples outside x are zeros.
  template <typename Context>
  static FANIN_INLINE void stage(const Context& context, const PanelArgs& args, const Share& share,
                                 int part) {
    constexpr int kWordGroups = kColumnBytes / 16;
    const int warps = context.threads() / 32, lane = context.thread() % 32;
    const int pieces = args.columns / kPieceColumns * kWordGroups;
    for (int first = context.thread() / 32; first < pieces; first += kPieces * warps) {
      Raw<16> loaded[kPieces];
      FANIN_UNROLL
      for (int i = 0; i < kPieces; ++i) {
        const int piece = first + i * warps;
        const int64_t column = static_cast<int64_t>(part) * args.columns +
                               piece / kWordGroups * kPieceColumns + lane % 8 * 4;
        const int word = piece % kWordGroups * 4 + lane / 8;
        if (piece < pieces)
          loaded[i] = load_piece(context, args, share.sample + word * kWordSamples, column);
      }
      FANIN_UNROLL
      for (int i = 0; i < kPieces; ++i) {
        const int piece = first + i * warps;
        if (piece < pieces) store_piece(context, args, piece, loaded[i]);
      }
    }
  }

  template <typename Context>
  static FANIN_INLINE Raw<16> load_piece(const Context& context, const PanelArgs& args, int64_t row,
                                         int64_t column) {
    if constexpr (sizeof(X) == 4) {
      return load_four(context, args, row, column);
    } else {
      const Raw<8> first = load_four(context, args, row, column);
      const Raw<8> second = load_four(context, args, row + 1, column);
      return {{first.words[0], first.words[1], second.words[0], second.words[1]}};
    }
  }

  // The words of four columns of a piece; for 16-bit types a word is two neighboring samples. Not
  // combined at the load, which would have to be waited for.
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

  // Four neighboring columns of a sample.
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
  static FANIN_INLINE void store_piece(const Context& context, const PanelArgs& args, int piece,
                                       const Raw<16>& loaded) {
    constexpr int kWordGroups = kColumnBytes / 16;
    const int lane = context.thread() % 32;
    const auto columns =
        context.template shared<uint32_t>(0, static_cast<int64_t>(args.columns) * (kStride / 4));
    // Lanes begin at different columns of their four; otherwise lanes 16 words apart would conflict
    // in one bank: 36 * 4 = 16 modulo 32.
    const int turn = lane % 8 / 2;
    const int column = piece / kWordGroups * kPieceColumns + lane % 8 * 4;
    const int first = column * (kStride / 4) + piece % kWordGroups * 4 + lane / 8;
    Raw<16> turned = by_column(loaded);
    turned = turn & 1 ? rotated<1>(turned) : turned;
    turned = turn & 2 ? rotated<2>(turned) : turned;
    FANIN_UNROLL
    for (int j = 0; j < 4; ++j)
      columns.store(first + (j + turn) % 4 * (kStride / 4), turned.words[j]);
  }

  template <int kBy>
  static FANIN_INLINE Raw<16> rotated(const Raw<16>& raw) {
    return {{raw.words[kBy], raw.words[(kBy + 1) % 4], raw.words[(kBy + 2) % 4],
             raw.words[(kBy + 3) % 4]}};
  }

  // A block of the cluster writes every cluster-th sample; a warp, 32 rows of one sample at a time.
  template <typename Context>
  static FANIN_INLINE void finish(const Context& context, const PanelArgs& args,
                                  const Share& share) {
    const int lane = context.thread() % 32;
    const int64_t count = args.batch * args.out_features;
    const auto outputs = context.template global<int32_t>(
        args.outputs, static_cast<int64_t>(args.bands) * kBandRows);
    const auto bias = context.template global<float>(args.bias, args.out_features);
    const auto y = context.template output<X>(args.y, count);
    for (int item = context.thread() / 32;; item += context.threads() / 32) {
      const int sample = share.rank + item / share.bands * args.cluster;
      const int64_t row = share.sample + sample;
      if (sample >= kTile || row >= args.batch) return;
      const int band = item % share.bands;
      const int64_t output = outputs[(share.band + band) * kBandRows + lane];
      if (output < 0) continue;
      float sums[kMaxCluster];
      FANIN_UNROLL
      for (int rank = 0; rank < kMaxCluster; ++rank)
        if (rank < args.cluster)
          sums[rank] =
              sums_of(context, args, rank).load((band * kBandRows + lane) * (kTile + 1) + sample);
      float value = 0;
      FANIN_UNROLL
      for (int rank = 0; rank < kMaxCluster; ++rank)
        if (rank < args.cluster) value += sums[rank];
      value += bias[output];
      const int64_t at = row * args.out_features + output;
      if (args.residual) value += widen(context.template global<X>(args.residual, count)[at]);
      y.store(at, narrow<X>(clipped(value, args.clip_min, args.clip_max)));
    }
  }
};

}  // namespace fanin::cuda
