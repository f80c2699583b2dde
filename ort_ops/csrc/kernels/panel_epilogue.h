// The destinations of a part's sums. Like panel_core.h, only for translation units of one
// instruction set.
#pragma once

#include "kernels/panel_ahead.h"
#include "kernels/panel_conv_ops.h"

namespace fanin {
namespace {

// See Gate::apply.
template <typename Vector>
inline __attribute__((always_inline)) typename Vector::Type gated(typename Vector::Type value,
                                                                  typename Vector::Type scale,
                                                                  typename Vector::Type shift) {
  const float zero = 0.0f, one = 1.0f;
  const typename Vector::Type share = Vector::fma(value, scale, shift);
  return Vector::mul(value, Vector::clip(share, Vector::broadcast(&zero), Vector::broadcast(&one)));
}

// Sums go on from the array of sums, or start from a bias.
struct FromSums {
  template <typename Vector>
  static inline __attribute__((always_inline)) typename Vector::Type start(const float* bias,
                                                                           const float* place) {
    return bias ? Vector::broadcast(bias) : Vector::load(place);
  }
};

// Writes to the array of sums.
struct ToSums : FromSums {
  static constexpr int strip_count() { return 1; }
  static constexpr int64_t panel_at(int) { return 0; }
  static constexpr int64_t sums_at(int) { return 0; }

  void fetch(const uint16_t*) const {}

  template <typename Vector, int kVectors>
  inline __attribute__((always_inline)) void leave(typename Vector::Type (&sum)[kVectors], uint16_t,
                                                   float* place, int) const {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) Vector::store(place + v * Vector::kLanes, sum[v]);
  }
};

// Writes to the outputs, with residual, clip and gate, for the strips of a tile. kGated equals
// output.gated: a branch around the gate made convolutions without one 3 % slower.
template <typename Vector, int kVectors, bool kGated>
struct ToOutput : FromSums {
  static constexpr int kWidth = kVectors * Vector::kLanes;

  const ConvOutput& output;
  const ConvStrips& strips;
  const uint16_t* last_rows;  // of the part's last group
  int lines;                  // of an output, to be fetched
  typename Vector::Mask all, last[kVectors];
  typename Vector::Type low, high;

  ToOutput(const PanelPart& part, const ConvStrips& tile, const ConvOutput& to)
      : output(to),
        strips(tile),
        last_rows(part.rows - kPanelGroupRows),
        lines(0),
        all(Vector::first(Vector::kLanes)),
        low(Vector::broadcast(&to.clip_min)),
        high(Vector::broadcast(&to.clip_max)) {
    for (size_t run = 0; run < part.run_count; ++run)
      last_rows += size_t{part.runs[run].groups} * kPanelGroupRows;
    const int in_last = to.samples - (tile.count - 1) * kWidth;
    for (int v = 0; v < kVectors; ++v) last[v] = Vector::first(in_last - v * Vector::kLanes);
    const int output_lines =
        (to.samples * static_cast<int>(sizeof(float)) + kLineBytes - 1) / kLineBytes;
    if (to.fetch) lines = output_lines < kFetchedLines ? output_lines : kFetchedLines;
  }

  int strip_count() const { return strips.count; }
  int64_t panel_at(int strip) const { return strip * strips.panel_stride; }
  int64_t sums_at(int strip) const { return strip * strips.sums_stride; }

  // Prefetches the outputs of the group after the one with these rows: the CPU's prefetchers do not
  // find them, and a line must be in cache before it can be written.
  inline __attribute__((always_inline)) void fetch(const uint16_t* rows) const {
    if (lines == 0 || rows == last_rows) return;
#pragma GCC unroll 8
    for (int r = kPanelGroupRows; r < 2 * kPanelGroupRows; ++r) {
      const int64_t at = rows[r] * output.stride;
      fetch_lines(output.y + at);
      if (output.residual) fetch_lines(output.residual + at);
    }
  }

  template <typename, int>
  inline __attribute__((always_inline)) void leave(typename Vector::Type (&sum)[kVectors],
                                                   uint16_t row, float* place, int strip) const {
    const bool filler = row >= output.outputs, is_last = strip + 1 == strips.count;
    const int64_t at = row * output.stride + strip * kWidth;
    float* to = filler ? place : output.y + at;
    if (output.residual) {
      const float* add = filler ? place : output.residual + at;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        sum[v] = Vector::add(sum[v],
                             Vector::load_some(add + v * Vector::kLanes, is_last ? last[v] : all));
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[v] = Vector::clip(sum[v], low, high);
    if constexpr (kGated) {
      const typename Vector::Type scale = Vector::broadcast(&output.gate_scale);
      const typename Vector::Type shift = Vector::broadcast(&output.gate_shift);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[v] = gated<Vector>(sum[v], scale, shift);
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      Vector::store_some(to + v * Vector::kLanes, sum[v], is_last ? last[v] : all);
  }

 private:
  // The CPU's own prefetchers find the lines after these.
  static constexpr int kFetchedLines = 4;

  inline __attribute__((always_inline)) void fetch_lines(const float* from) const {
    for (int line = 0; line < lines; ++line)
      __builtin_prefetch(reinterpret_cast<const char*>(from) + line * kLineBytes, 0, 3);
  }
};

// Adds to sums of int32, for products of integers as floats (int8 layers): those of one segment are
// exact.
struct ToIntegers : ToSums {
  bool is_first;

  template <typename Vector>
  static inline __attribute__((always_inline)) typename Vector::Type start(const float*,
                                                                           const float*) {
    const float zero = 0.0f;
    return Vector::broadcast(&zero);
  }

  template <typename Vector, int kVectors>
  inline __attribute__((always_inline)) void leave(typename Vector::Type (&sum)[kVectors], uint16_t,
                                                   float* place, int) const {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      Vector::add_integers(place + v * Vector::kLanes, sum[v], is_first);
  }
};

}  // namespace
}  // namespace fanin
