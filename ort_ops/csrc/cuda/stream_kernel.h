// Few samples: a thread program that streams the weights of a row past x in shared memory.
//
// Every weight is used for at most eight samples, so the time is that of reading the packed layer
// and, in small layers, the latency of a launch, of one read from L2 and of staging x. A row
// belongs to one or several warps; a lane takes chunks of 16 bytes of values and their indices. The
// first chunks are requested before x is staged. A row's sum has a fixed order: the chunks of each
// lane, then a butterfly, then the warps of the row in turn.
#pragma once

#include <cstdint>

#include "cuda/types.h"

namespace fanin::cuda {

// An output's position in the stream, and how many of its entries are weights; none if it is
// ablated.
struct StreamRow {
  int32_t stored;
  int32_t count;
};

struct StreamArgs {
  const void* values;     // [active, chunks] chunks of 16 bytes
  const void* indices;    // [active, chunks] chunks of as many indices
  const StreamRow* rows;  // [out_features]
  const float* bias;      // [out_features]
  const void* x;          // [batch, in_features]
  const void* residual;   // [batch, out_features] or null
  void* y;                // [batch, out_features]
  int64_t batch;
  int64_t stored_chunks;  // active * chunks
  int32_t in_features;
  int32_t out_features;
  int32_t chunks;         // of a row
  int32_t warps_per_row;  // divides the warps of a block
  int32_t vector_x;       // x and its rows lie at multiples of 16 bytes
  float clip_min;
  float clip_max;
};

// Layout of a column's samples in shared memory: vectors of up to 16 bytes, those of all columns
// side by side.
template <typename X, int kSamples>
struct StagedX {
  static constexpr int kBytes = kSamples * static_cast<int>(sizeof(X));
  static constexpr int kVector = kBytes < 16 ? kBytes : 16;
  static constexpr int kVectors = kBytes / kVector;
  static constexpr int kPerVector = kSamples / kVectors;
};

// Shared memory of a block: x, then one sum per warp and sample if warps share rows.
inline int64_t stream_shared_bytes(int64_t in_features, int64_t activation_bytes, int64_t samples,
                                   bool staged, int64_t warps, int64_t warps_per_row) {
  const int64_t x = staged ? (in_features * activation_bytes * samples + 15) / 16 * 16 : 0;
  return x + (warps_per_row > 1 ? warps * samples * 4 : 0);
}

// kStaged: x is staged in shared memory, kSamples at a time. Otherwise x is read from global
// memory, one sample at a time, for rows longer than shared memory.
template <typename Value, typename X, typename Index, int kSamples, bool kStaged>
class StreamKernel {
  static constexpr int kEntries = 16 / static_cast<int>(sizeof(Value));
  static constexpr int kIndexBytes = kEntries * static_cast<int>(sizeof(Index));
  static constexpr int kAhead = 2;
  using Staged = StagedX<X, kSamples>;
  using Vector = Raw<Staged::kVector>;

  static_assert(kStaged || kSamples == 1, "x is read in place for one sample at a time");

  struct Chunk {
    Raw<16> values;
    Raw<kIndexBytes> indices;
  };

 public:
  static constexpr int kMaxThreads = 512;
  static constexpr int kMinBlocks = 1;

  template <typename Context>
  static FANIN_INLINE void run(const Context& context, const StreamArgs& args) {
    const int warps = context.threads() / 32, warp = context.thread() / 32;
    const int lane = context.thread() % 32;
    const int slots = warps / args.warps_per_row;
    const int slot = warp / args.warps_per_row, part = warp % args.warps_per_row;
    const auto rows = context.template global<StreamRow>(args.rows, args.out_features);
    const int64_t x_bytes =
        kStaged ? (static_cast<int64_t>(args.in_features) * Staged::kBytes + 15) / 16 * 16 : 0;
    const auto partial =
        context.template shared<float>(x_bytes, args.warps_per_row > 1 ? warps * kSamples : 0);

    for (int64_t group = context.block_y(); group * kSamples < args.batch;
         group += context.grid_y()) {
      const int64_t sample = group * kSamples;
      bool staged = false;
      for (int64_t first = context.block_x() * slots; first < args.out_features;
           first += context.grid_x() * slots) {
        const int64_t output = first + slot;
        const StreamRow row = output < args.out_features ? rows[output] : StreamRow{0, 0};
        const int stride = 32 * args.warps_per_row;
        const int chunks = row.count / kEntries + (row.count % kEntries != 0);
        int at = part * 32 + lane;
        Chunk ahead[kAhead];
        FANIN_UNROLL
        for (int i = 0; i < kAhead; ++i)
          if (at + i * stride < chunks) ahead[i] = load(context, args, row, at + i * stride);

        if (kStaged && !staged) {
          context.sync();  // everybody is done with the samples before
          stage(context, args, sample);
          context.sync();
          staged = true;
        }

        float sums[kSamples] = {};
        FANIN_UNROLL
        for (int i = 0; i < kAhead; ++i, at += stride)
          if (at < chunks) add(context, args, ahead[i], row.count - at * kEntries, sample, sums);
        for (; at < chunks; at += stride)
          add(context, args, load(context, args, row, at), row.count - at * kEntries, sample, sums);

        float sum = 0;  // of the sample that has the lane's number
        FANIN_UNROLL
        for (int i = 0; i < kSamples; ++i) {
          const float total = context.warp_sum(sums[i]);
          if (lane == i) sum = total;
        }
        if (args.warps_per_row > 1) {
          if (lane < kSamples) partial.store(warp * kSamples + lane, sum);
          context.sync();
          if (part == 0 && lane < kSamples)
            for (int other = 1; other < args.warps_per_row; ++other)
              sum += partial.load((warp + other) * kSamples + lane);
          context.sync();
        }
        if (part == 0 && lane < kSamples && output < args.out_features &&
            sample + lane < args.batch)
          finish(context, args, sample + lane, output, sum);
      }
    }
  }

 private:
  template <typename Context>
  static FANIN_INLINE Chunk load(const Context& context, const StreamArgs& args, StreamRow row,
                                 int chunk) {
    const int64_t at = static_cast<int64_t>(row.stored) * args.chunks + chunk;
    return {context.template global<Raw<16>>(args.values, args.stored_chunks)[at],
            context.template global<Raw<kIndexBytes>>(args.indices, args.stored_chunks)[at]};
  }

  // The first `left` entries of the chunk; later ones are never multiplied with x.
  template <typename Context>
  static FANIN_INLINE void add(const Context& context, const StreamArgs& args, const Chunk& chunk,
                               int left, int64_t sample, float (&sums)[kSamples]) {
    FANIN_UNROLL
    for (int i = 0; i < kEntries; ++i) {
      const float weight = widen_bits<Value>(part_of<sizeof(Value)>(chunk.values, i));
      const uint32_t column = part_of<sizeof(Index)>(chunk.indices, i);
      if (i >= left) continue;
      if constexpr (kStaged) {
        const auto x = context.template shared<Vector>(
            0, static_cast<int64_t>(args.in_features) * Staged::kVectors);
        FANIN_UNROLL
        for (int v = 0; v < Staged::kVectors; ++v) {
          const Vector vector = x.load(v * args.in_features + static_cast<int>(column));
          FANIN_UNROLL
          for (int s = 0; s < Staged::kPerVector; ++s) {
            float& sum = sums[v * Staged::kPerVector + s];
            sum = context.fma(weight, widen_bits<X>(part_of<sizeof(X)>(vector, s)), sum);
          }
        }
      } else {
        const auto x = context.template global<X>(args.x, args.batch * args.in_features);
        sums[0] = context.fma(weight, widen(x[sample * args.in_features + column]), sums[0]);
      }
    }
  }

  template <typename Context>
  static FANIN_INLINE void stage(const Context& context, const StreamArgs& args, int64_t sample) {
    const int columns = args.in_features;
    if (kSamples == 1 && args.vector_x) {
      const int vectors = columns * static_cast<int>(sizeof(X)) / 16;
      const auto from = context.template global<Raw<16>>(args.x, args.batch * vectors);
      const auto to = context.template shared<Raw<16>>(0, vectors);
      FANIN_UNROLL
      for (int i = context.thread(); i < vectors; i += context.threads())
        to.store(i, from[sample * vectors + i]);
      return;
    }
    const auto from = context.template global<X>(args.x, args.batch * columns);
    const auto to =
        context.template shared<Vector>(0, static_cast<int64_t>(columns) * Staged::kVectors);
    for (int column = context.thread(); column < columns; column += context.threads()) {
      uint32_t bits[kSamples];
      FANIN_UNROLL
      for (int s = 0; s < kSamples; ++s)
        bits[s] = sample + s < args.batch ? stored_bits(from[(sample + s) * columns + column]) : 0;
      FANIN_UNROLL
      for (int v = 0; v < Staged::kVectors; ++v) {
        Vector vector;
        if constexpr (Staged::kVector == 2) {
          vector.half = static_cast<uint16_t>(bits[0]);
        } else if constexpr (sizeof(X) == 4) {
          FANIN_UNROLL
          for (int w = 0; w < Vector::kWords; ++w)
            vector.words[w] = bits[v * Staged::kPerVector + w];
        } else {
          FANIN_UNROLL
          for (int w = 0; w < Vector::kWords; ++w)
            vector.words[w] = bits[v * Staged::kPerVector + 2 * w] |
                              bits[v * Staged::kPerVector + 2 * w + 1] << 16;
        }
        to.store(v * columns + column, vector);
      }
    }
  }

  template <typename Context>
  static FANIN_INLINE void finish(const Context& context, const StreamArgs& args, int64_t sample,
                                  int64_t output, float sum) {
    const int64_t count = args.batch * args.out_features;
    const int64_t at = sample * args.out_features + output;
    float value = sum + context.template global<float>(args.bias, args.out_features)[output];
    if (args.residual) value += widen(context.template global<X>(args.residual, count)[at]);
    context.template output<X>(args.y, count)
        .store(at, narrow<X>(clipped(value, args.clip_min, args.clip_max)));
  }
};

}  // namespace fanin::cuda
