// The samples of CondensedGemm for the expand kernel: rows of x and y.
//
// In shared memory, a sample's chunk is 256 bytes; its units of 16 bytes are permuted, so that
// ldmatrix reads those of eight samples from different banks. For the second operand, four columns
// of TF32 are to ldmatrix what eight of 16 bits are.
#pragma once

#include <cstdint>

#include "cuda/expand_share.h"
#include "cuda/types.h"

namespace fanin::cuda {

// kVectorX: rows of x begin at multiples of 16 bytes.
template <typename T, int kSamples, bool kVectorX>
class RowSamples : ExpandTile<T> {
  using Tile = ExpandTile<T>;
  static constexpr int kUnit = 16 / static_cast<int>(sizeof(T));  // columns
  static constexpr int kUnits = Tile::kChunkBytes / 16;

 public:
  using X = T;
  using Args = ExpandArgs;
  static constexpr int kTile = kSamples;
  static constexpr int kBytes = kTile * Tile::kChunkBytes;  // of a chunk
  static constexpr int kItems = kTile * kUnits;             // that copy() copies of a chunk
  static constexpr int kItemsAtOnce = 1;

  template <typename Context>
  FANIN_INLINE RowSamples(const Context&, const Args&, const ExpandShare&, int64_t first)
      : first_(first) {}

  FANIN_INLINE int64_t first() const { return first_; }

  // Begins to copy an item of a chunk. Columns and samples outside x are zeros.
  template <typename Context>
  FANIN_INLINE void copy(const Context& context, const Args& args, int item, int chunk,
                         int to) const {
    const int n = item / kUnits, unit = item % kUnits;
    const int column = chunk * Tile::kColumns + unit * kUnit;
    int there = first_ + n < args.batch ? args.in_features - column : 0;
    there = there < 0 ? 0 : there > kUnit ? kUnit : there;
    const int64_t at = there > 0 ? (first_ + n) * args.in_features + column : 0;
    const int64_t count = args.batch * args.in_features;
    to += n * Tile::kChunkBytes + (unit ^ n % 8) * 16;
    if constexpr (kVectorX) {
      context.template copy_async16<X>(args.x, count, at, there, to);
    } else {
      const auto x = context.template global<X>(args.x, count);
      Raw<16> unit_bits{{0, 0, 0, 0}};
      FANIN_UNROLL
      for (int j = 0; j < kUnit; ++j)
        if (j < there)
          unit_bits.words[j / Tile::kPair] |= stored_bits(x[at + j]) << (16 * (j % Tile::kPair));
      context.template shared<Raw<16>>(to, 1).store(0, unit_bits);
    }
  }

  // The second operand of step k for one or two groups of eight samples; `base` is the chunk's
  // place in shared memory.
  template <int kGroups, typename Context>
  static FANIN_INLINE Raw<8 * kGroups> operands(const Context& context, int base, int k,
                                                int group) {
    // A lane names a row of 16 bytes: of eight samples, the first columns, then the others; then of
    // the next eight samples.
    const int lane = context.thread() % 32;
    const int unit = (k * 2 + lane / 8 % 2) ^ lane % 8;
    const int row = base + lane % 8 * Tile::kChunkBytes + unit * 16;
    if constexpr (kGroups == 1) {
      return context.template load_matrices<2>(row);
    } else {
      return context.template load_matrices<4>(row +
                                               (group * 8 + lane / 16 * 8) * Tile::kChunkBytes);
    }
  }

  // x of a sample at a column.
  template <typename Context>
  static FANIN_INLINE float x_at(const Context& context, const Args& args, int, int64_t sample,
                                 int column) {
    return widen(context.template global<X>(
        args.x, args.batch * args.in_features)[sample * args.in_features + column]);
  }

  // Outputs of neighboring threads lie side by side: those of neighboring rows.
  static FANIN_INLINE int sample_of(int item, int rows) { return item / rows; }
  static FANIN_INLINE int row_of(int item, int rows) { return item % rows; }
  static FANIN_INLINE int64_t output_at(const Args& args, int64_t sample, int64_t output) {
    return sample * args.out_features + output;
  }
  template <typename Context>
  static FANIN_INLINE float activated(const Context&, const Args& args, float value) {
    return clipped(value, args.clip_min, args.clip_max);
  }

 private:
  int64_t first_;
};

}  // namespace fanin::cuda
