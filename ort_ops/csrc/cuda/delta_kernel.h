// Up to four samples: a thread program that streams weights with their columns as steps of 8 bits.
//
// The rows of a tile are cut into chains: parts of a row's weights with nearly equal numbers of
// them. A thread owns one chain: it sums the products of its own weights alone, so warps exchange
// nothing while they stream. The chains of a tile lie interleaved, so that a warp reads 512 bytes
// of values at once. The columns of four weights are four sums of bytes, one instruction each. In
// the end the sums of a row's chains are added in their order.
//
// Steps without a weight fill a chain up, or move on to a weight that is more than 255 columns
// away. They have the value +0 (a weight of +0 is stored as -0, which changes no sum) and are
// multiplied all the same. That turns an infinity of x into NaN, so a chain whose sum is NaN is
// summed again without them.
#pragma once

#include <cstdint>

#include "cuda/delta_x.h"
#include "cuda/types.h"

namespace fanin::cuda {

inline constexpr int kDeltaThreads = 896;  // with 72 registers
inline constexpr int kDeltaStep = 255;     // the widest

// Weights of a chunk.
inline constexpr int delta_entries(int64_t value_bytes) {
  return static_cast<int>(16 / value_bytes);
}

// Shared memory of a block: x, output and bias of each row, then a sum for each chain and sample.
inline int64_t delta_shared_bytes(int64_t in_features, int64_t activation_bytes, int64_t samples,
                                  int64_t rows, int64_t parts) {
  return (in_features * activation_bytes * samples + 15) / 16 * 16 + rows * 8 +
         rows * parts * samples * 4;
}

// kSamples: 1, 2 or 4, side by side in shared memory for each column.
template <typename Value, typename X, int kSamples>
class DeltaKernel {
  static constexpr int kEntries = delta_entries(sizeof(Value));
  static constexpr int kColumnBytes = DeltaX<X, kSamples>::kColumnBytes;
  // Chunks of a chain that are being loaded: with 800 chains, 77 KB of a multiprocessor.
  static constexpr int kAhead = 4;
  // Of them before x: as many as hide the latency of x, more would delay it.
  static constexpr int kBeforeX = 2;
  using Staged = DeltaX<X, kSamples>;
  using Column = typename Staged::Column;

  struct Chunk {
    Raw<16> values;
    Raw<kEntries> deltas;
  };

  // What the sum of a row becomes part of; loaded early, since memory takes long to answer.
  struct Target {
    int32_t output;
    float bias;
  };

  struct Chain {
    uint32_t chunk;   // the first one
    uint32_t stride;  // to the next
    int steps;        // 0 for threads without a chain
    uint32_t place;   // in shared memory, of the column before the first step
  };

 public:
  static constexpr int kMaxThreads = kDeltaThreads;
  static constexpr int kMinBlocks = 1;

  template <typename Context>
  static FANIN_INLINE void run(const Context& context, const DeltaArgs& args) {
    const int tiles = (args.active + args.rows - 1) / args.rows;
    for (int64_t group = context.block_y(); group * kSamples < args.batch;
         group += context.grid_y()) {
      const int64_t sample = group * kSamples;
      int tile = static_cast<int>(context.block_x());
      Chunk ahead[kAhead];
      Chain chain = open(context, args, tile, tiles);
      begin<0, kBeforeX>(context, args, chain, ahead);
      Target target = target_of(context, args, tile, tiles);
      context.sync();  // all threads are done with the previous samples
      Staged::stage(context, args, sample);
      keep_target(context, args, target);
      context.sync();
      for (; tile < tiles; tile += static_cast<int>(context.grid_x())) {
        begin<kBeforeX, kAhead>(context, args, chain, ahead);
        float sums[kSamples] = {};
        multiply(context, args, chain, ahead, sums);
        bool is_nan = false;
        FANIN_UNROLL
        for (int s = 0; s < kSamples; ++s) is_nan |= sums[s] != sums[s];
        if (is_nan) multiply_weights(context, args, chain, sums);
        const int next = tile + static_cast<int>(context.grid_x());
        chain = open(context, args, next, tiles);
        begin<0, kBeforeX>(context, args, chain, ahead);
        target = target_of(context, args, next, tiles);
        finish_tile(context, args, sample, tile, sums);
        keep_target(context, args, target);
      }
      finish_ablated(context, args, sample);
    }
  }

 private:
  static FANIN_INLINE int rows_of(const DeltaArgs& args, int tile) {
    const int left = args.active - tile * args.rows;
    return left < args.rows ? left : args.rows;
  }

  static FANIN_INLINE int x_bytes(const DeltaArgs& args) {
    return (args.in_features * kColumnBytes + 15) / 16 * 16;
  }

  template <typename Context>
  static FANIN_INLINE Chain open(const Context& context, const DeltaArgs& args, int tile,
                                 int tiles) {
    Chain chain{0, 0, 0, 0};
    if (tile >= tiles) return chain;
    chain.stride = static_cast<uint32_t>(rows_of(args, tile) * args.parts);
    if (context.thread() >= static_cast<int>(chain.stride)) return chain;
    const int64_t chains = static_cast<int64_t>(args.rows) * args.parts;
    DeltaTile place{static_cast<int32_t>(tile * chains * args.steps), args.steps};
    if (args.steps == 0) place = context.template global<DeltaTile>(args.tiles, tiles)[tile];
    const uint32_t start = context.template global<uint16_t>(
        args.starts, tiles * chains)[tile * chains + context.thread()];
    chain.chunk = static_cast<uint32_t>(place.chunk + context.thread());
    chain.steps = place.steps;
    chain.place = (start - 1) * kColumnBytes;
    return chain;
  }

  // Of the row with the thread's number.
  template <typename Context>
  static FANIN_INLINE Target target_of(const Context& context, const DeltaArgs& args, int tile,
                                       int tiles) {
    Target target{0, 0};
    if (tile >= tiles || context.thread() >= rows_of(args, tile)) return target;
    const int64_t at = static_cast<int64_t>(tile) * args.rows + context.thread();
    target.output = context.template global<int32_t>(args.outputs, args.out_features)[at];
    target.bias = context.template global<float>(args.bias, args.out_features)[at];
    return target;
  }

  template <typename Context>
  static FANIN_INLINE auto targets(const Context& context, const DeltaArgs& args) {
    return context.template shared<Target>(x_bytes(args), args.rows);
  }

  template <typename Context>
  static FANIN_INLINE void keep_target(const Context& context, const DeltaArgs& args,
                                       const Target& target) {
    if (context.thread() < args.rows) targets(context, args).store(context.thread(), target);
  }

  template <typename Context>
  static FANIN_INLINE Chunk load(const Context& context, const DeltaArgs& args, uint32_t at) {
    return {context.template global<Raw<16>>(args.values, args.chunks).once(at),
            context.template global<Raw<kEntries>>(args.deltas, args.chunks)[at]};
  }

  template <int kFirst, int kLast, typename Context>
  static FANIN_INLINE void begin(const Context& context, const DeltaArgs& args, const Chain& chain,
                                 Chunk (&ahead)[kAhead]) {
    FANIN_UNROLL
    for (int i = kFirst; i < kLast; ++i)
      if (i < chain.steps) ahead[i] = load(context, args, chain.chunk + i * chain.stride);
  }

  template <typename Context>
  static FANIN_INLINE void multiply(const Context& context, const DeltaArgs& args,
                                    const Chain& chain, Chunk (&ahead)[kAhead],
                                    float (&sums)[kSamples]) {
    uint32_t place = chain.place, next = chain.chunk + kAhead * chain.stride;
    FANIN_ROLLED
    for (int left = chain.steps; left > 0; left -= kAhead) {
      FANIN_UNROLL
      for (int i = 0; i < kAhead; ++i, next += chain.stride) {
        if (i >= left) break;
        // Loaded after its last use, into the same registers: a copy would wait for the load.
        add_chunk(context, ahead[i], place, sums);
        if (i + kAhead < left) ahead[i] = load(context, args, next);
      }
    }
  }

  template <typename Context>
  static FANIN_INLINE void add_chunk(const Context& context, const Chunk& chunk, uint32_t& place,
                                     float (&sums)[kSamples]) {
    FANIN_UNROLL
    for (int word = 0; word < kEntries / 4; ++word) {
      uint32_t at = place;
      FANIN_UNROLL
      for (int i = 0; i < 4; ++i) {
        // The bytes of the steps so far, times the bytes of a column.
        at = context.dot4(chunk.deltas.words[word],
                          (0x01010101u >> (24 - 8 * i)) * static_cast<uint32_t>(kColumnBytes),
                          place);
        add(context, part_of<sizeof(Value)>(chunk.values, 4 * word + i), at, sums);
      }
      place = at;
    }
  }

  template <typename Context>
  static FANIN_INLINE void add(const Context& context, uint32_t value, uint32_t place,
                               float (&sums)[kSamples]) {
    const float weight = widen_bits<Value>(value);
    const Column column = context.template shared<Column>(place, 1).load(0);
    FANIN_UNROLL
    for (int s = 0; s < kSamples; ++s)
      sums[s] = context.fma(weight, widen_bits<X>(part_of<sizeof(X)>(column, s)), sums[s]);
  }

  // The sums over the weights alone.
  template <typename Context>
  static FANIN_INLINE void multiply_weights(const Context& context, const DeltaArgs& args,
                                            const Chain& chain, float (&sums)[kSamples]) {
    FANIN_UNROLL
    for (int s = 0; s < kSamples; ++s) sums[s] = 0;
    uint32_t place = chain.place;
    FANIN_ROLLED
    for (int step = 0; step < chain.steps; ++step) {
      const Chunk chunk = load(context, args, chain.chunk + step * chain.stride);
      FANIN_UNROLL
      for (int i = 0; i < kEntries; ++i) {
        place += (chunk.deltas.words[i / 4] >> (8 * (i % 4)) & 0xff) * kColumnBytes;
        const uint32_t value = part_of<sizeof(Value)>(chunk.values, i);
        if (value != 0) add(context, value, place, sums);
      }
    }
  }

  // Adds the sums of every row's chains and writes its outputs.
  template <typename Context>
  static FANIN_INLINE void finish_tile(const Context& context, const DeltaArgs& args,
                                       int64_t sample, int tile, const float (&sums)[kSamples]) {
    const int rows = rows_of(args, tile), chains = rows * args.parts;
    const auto partial = context.template shared<float>(
        x_bytes(args) + args.rows * static_cast<int64_t>(sizeof(Target)),
        static_cast<int64_t>(args.rows) * args.parts * kSamples);
    if (context.thread() < chains) {
      FANIN_UNROLL
      for (int s = 0; s < kSamples; ++s) partial.store(s * chains + context.thread(), sums[s]);
    }
    context.sync();
    const auto row_targets = targets(context, args);
    for (int i = context.thread(); i < rows * kSamples; i += context.threads()) {
      const int s = i / rows, row = i % rows;
      if (sample + s >= args.batch) break;
      const Target target = row_targets.load(row);
      const float residual = residual_at(context, args, sample + s, target.output);
      float sum = 0;
      FANIN_UNROLL4
      for (int part = 0; part < args.parts; ++part)
        sum += partial.load(s * chains + part * rows + row);
      write(context, args, sample + s, target.output, sum + target.bias + residual);
    }
    context.sync();
  }

  template <typename Context>
  static FANIN_INLINE void finish_ablated(const Context& context, const DeltaArgs& args,
                                          int64_t sample) {
    const int count = args.out_features - args.active;
    const auto outputs = context.template global<int32_t>(args.outputs, args.out_features);
    const auto bias = context.template global<float>(args.bias, args.out_features);
    const int64_t first = context.block_x() * context.threads() + context.thread();
    for (int64_t i = first; i < static_cast<int64_t>(count) * kSamples;
         i += context.grid_x() * context.threads()) {
      const int64_t s = i / count, at = args.active + i % count;
      if (sample + s >= args.batch) break;
      const int64_t output = outputs[at];
      write(context, args, sample + s, output,
            bias[at] + residual_at(context, args, sample + s, output));
    }
  }

  template <typename Context>
  static FANIN_INLINE float residual_at(const Context& context, const DeltaArgs& args,
                                        int64_t sample, int64_t output) {
    if (!args.residual) return 0;
    return widen(context.template global<X>(
        args.residual, args.batch * args.out_features)[sample * args.out_features + output]);
  }

  template <typename Context>
  static FANIN_INLINE void write(const Context& context, const DeltaArgs& args, int64_t sample,
                                 int64_t output, float value) {
    context.template output<X>(args.y, args.batch * args.out_features)
        .store(sample * args.out_features + output,
               narrow<X>(clipped(value, args.clip_min, args.clip_max)));
  }
};

}  // namespace fanin::cuda
