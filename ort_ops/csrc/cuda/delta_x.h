// Arguments of the delta kernel, and x in its shared memory; see delta_kernel.h.
#pragma once

#include <cstdint>

#include "cuda/types.h"

namespace fanin::cuda {

// Where a tile's chains begin.
struct DeltaTile {
  int32_t chunk;
  int32_t steps;  // chunks of each chain
};

struct DeltaArgs {
  const void* values;      // [chunks] of 16 bytes: by tile, step and chain
  const void* deltas;      // [chunks] of as many bytes
  const uint16_t* starts;  // [tiles, rows * parts]: one more than the column before the first step
  const DeltaTile* tiles;  // [tiles]
  const int32_t* outputs;  // [out_features]: those with weights by tile, then the ablated ones
  const float* bias;       // [out_features], in the order of the outputs
  const void* x;           // [batch, in_features]
  const void* residual;    // [batch, out_features] or null
  void* y;                 // [batch, out_features]
  int64_t batch;
  int64_t chunks;
  int32_t in_features;
  int32_t out_features;
  int32_t active;    // outputs with weights
  int32_t rows;      // of a tile, the last one may have fewer
  int32_t parts;     // chains of a row
  int32_t steps;     // of all tiles, which are then not looked up; 0 if they differ
  int32_t vector_x;  // rows of x begin at multiples of 16 bytes / samples
  float clip_min;
  float clip_max;
};

// kSamples of a column lie side by side, so that one load has them all.
template <typename X, int kSamples>
class DeltaX {
 public:
  static constexpr int kColumnBytes = kSamples * static_cast<int>(sizeof(X));
  using Column = Raw<kColumnBytes>;

  template <typename Context>
  static FANIN_INLINE void stage(const Context& context, const DeltaArgs& args, int64_t sample) {
    if (args.vector_x) {
      stage_units(context, args, sample);
    } else {
      stage_columns(context, args, sample);
    }
  }

 private:
  // Columns of 16 bytes of shared memory.
  static constexpr int kUnitColumns = 16 / kColumnBytes;

  // Threads copy 16 bytes at a time, so that neighbors store side by side.
  template <typename Context>
  static FANIN_INLINE void stage_units(const Context& context, const DeltaArgs& args,
                                       int64_t sample) {
    using Load = Raw<16 / kSamples>;
    const int units = args.in_features / kUnitColumns;
    const auto from = context.template global<Load>(args.x, args.batch * units);
    const auto to = context.template shared<Raw<16>>(0, units);
    FANIN_UNROLL4
    for (int unit = context.thread(); unit < units; unit += context.threads()) {
      Load loads[kSamples];
      FANIN_UNROLL
      for (int s = 0; s < kSamples; ++s) {
        loads[s] = Load{};
        if (sample + s < args.batch) loads[s] = from[(sample + s) * units + unit];
      }
      to.store(unit, side_by_side(loads));
    }
  }

  static FANIN_INLINE Raw<16> side_by_side(const Raw<16 / kSamples> (&loads)[kSamples]) {
    if constexpr (kSamples == 1) {
      return loads[0];
    } else {
      Raw<16> unit;
      FANIN_UNROLL
      for (int w = 0; w < 4; ++w) {
        if constexpr (sizeof(X) == 4) {
          unit.words[w] = loads[w % kSamples].words[w / kSamples];
        } else {
          const int s = 2 * w % kSamples, column = 2 * w / kSamples;
          unit.words[w] = part_of<2>(loads[s], column) | part_of<2>(loads[s + 1], column) << 16;
        }
      }
      return unit;
    }
  }

  template <typename Context>
  static FANIN_INLINE void stage_columns(const Context& context, const DeltaArgs& args,
                                         int64_t sample) {
    const int columns = args.in_features;
    const auto from = context.template global<X>(args.x, args.batch * columns);
    const auto to = context.template shared<Column>(0, columns);
    FANIN_UNROLL4
    for (int column = context.thread(); column < columns; column += context.threads()) {
      uint32_t bits[kSamples];
      FANIN_UNROLL
      for (int s = 0; s < kSamples; ++s)
        bits[s] = sample + s < args.batch ? stored_bits(from[(sample + s) * columns + column]) : 0;
      Column packed;
      if constexpr (kColumnBytes == 2) {
        packed.half = static_cast<uint16_t>(bits[0]);
      } else {
        FANIN_UNROLL
        for (int w = 0; w < Column::kWords; ++w)
          packed.words[w] = sizeof(X) == 4 ? bits[w] : bits[2 * w] | bits[2 * w + 1] << 16;
      }
      to.store(column, packed);
    }
  }
};

}  // namespace fanin::cuda
