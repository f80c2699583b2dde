// Where the sums of a part go from the registers. Like panel_core.h, only for translation units of
// an instruction set.
#pragma once

#include "kernels/conv_ops.h"
#include "kernels/panel_ahead.h"

namespace fanin {
namespace {

// Back to where they came from.
struct ToSums {
  void fetch(const uint16_t*) const {}

  template <typename Vector, int kVectors>
  inline __attribute__((always_inline)) void leave(typename Vector::Type (&sum)[kVectors], uint16_t,
                                                   float* place) const {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) Vector::store(place + v * Vector::kLanes, sum[v]);
  }
};

// To the outputs, with the residual and the clip.
template <typename Vector, int kVectors>
struct ToOutput {
  const ConvOutput& output;
  const uint16_t* last_rows;  // of the part's last group
  int lines;                  // of an output
  typename Vector::Mask masks[kVectors];
  typename Vector::Type low, high;

  ToOutput(const PanelPart& part, const ConvOutput& to)
      : output(to),
        last_rows(part.rows - kPanelGroupRows),
        lines(to.fetch
                  ? (to.samples * static_cast<int>(sizeof(float)) + kLineBytes - 1) / kLineBytes
                  : 0),
        low(Vector::broadcast(&to.clip_min)),
        high(Vector::broadcast(&to.clip_max)) {
    for (size_t run = 0; run < part.run_count; ++run)
      last_rows += size_t{part.runs[run].groups} * kPanelGroupRows;
    for (int v = 0; v < kVectors; ++v) masks[v] = Vector::first(to.samples - v * Vector::kLanes);
  }

  // The outputs of the group behind the one that has these rows: no CPU foresees their places, and
  // a line must come before it can be written.
  inline __attribute__((always_inline)) void fetch(const uint16_t* rows) const {
    if (lines == 0 || rows == last_rows) return;
#pragma GCC unroll 8
    for (int r = kPanelGroupRows; r < 2 * kPanelGroupRows; ++r) {
      const char* at = reinterpret_cast<const char*>(output.y + rows[r] * output.stride);
      for (int line = 0; line < lines; ++line) __builtin_prefetch(at + line * kLineBytes, 1, 3);
    }
  }

  template <typename, int>
  inline __attribute__((always_inline)) void leave(typename Vector::Type (&sum)[kVectors],
                                                   uint16_t row, float* place) const {
    const bool filler = row >= output.outputs;
    float* to = filler ? place : output.y + row * output.stride;
    if (output.residual) {
      const float* add = filler ? place : output.residual + row * output.stride;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        sum[v] = Vector::add(sum[v], Vector::load_some(add + v * Vector::kLanes, masks[v]));
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      Vector::store_some(to + v * Vector::kLanes, Vector::clip(sum[v], low, high), masks[v]);
  }
};

}  // namespace
}  // namespace fanin
