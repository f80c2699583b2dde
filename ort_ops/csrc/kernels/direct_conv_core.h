// DirectConvOps as templates over a vector type. Only for translation units of one instruction set,
// see panel_core.h. Vector: the operations that panel_core.h requires for ToOutput, and evens, odds
// (every second float of two vectors) and add_tap.
#pragma once

#include "kernels/direct_conv_ops.h"
#include "kernels/panel_epilogue.h"

namespace fanin {
namespace {

template <typename Vector>
inline __attribute__((always_inline)) typename Vector::Mask lanes_of(int64_t left) {
  return Vector::first(left < Vector::kLanes ? static_cast<int>(left) : Vector::kLanes);
}

template <typename Vector>
void copy_rows(const PaddedRows& rows) {
  const float* from = rows.from;
  float* to = rows.to;
  for (int64_t i = 0; i < rows.rows; ++i, from += rows.from_stride, to += rows.to_stride)
    for (int64_t j = 0; j < rows.width; j += Vector::kLanes) {
      const typename Vector::Mask mask = lanes_of<Vector>(rows.width - j);
      Vector::store_some(to + j, Vector::load_some(from + j, mask), mask);
    }
}

template <typename Vector>
void split_rows(const PaddedRows& rows) {
  constexpr int64_t kLanes = Vector::kLanes;
  const float* from = rows.from;
  for (int64_t i = 0; i < rows.rows; ++i, from += rows.from_stride) {
    float* even = rows.to + i * rows.to_stride;
    float* odd = rows.odd + i * rows.to_stride;
    for (int64_t j = 0; j < rows.width; j += 2 * kLanes) {
      const int64_t left = rows.width - j;
      const typename Vector::Type low = Vector::load_some(from + j, lanes_of<Vector>(left));
      const typename Vector::Type high =
          left > kLanes ? Vector::load_some(from + j + kLanes, lanes_of<Vector>(left - kLanes))
                        : low;
      Vector::store_some(even + j / 2, Vector::evens(low, high), lanes_of<Vector>((left + 1) / 2));
      Vector::store_some(odd + j / 2, Vector::odds(low, high), lanes_of<Vector>(left / 2));
    }
  }
}

// Writes the vectors of sums of a filter, one after another through its rows.
template <typename Vector>
struct FilterWriter {
  const FilterOutput& output;
  const typename Vector::Type low, high, scale, shift;
  int64_t column = 0;  // of the next vector
  int64_t row_at = 0;  // in y

  explicit FilterWriter(const FilterOutput& to)
      : output(to),
        low(Vector::broadcast(&to.clip_min)),
        high(Vector::broadcast(&to.clip_max)),
        scale(Vector::broadcast(&to.gate_scale)),
        shift(Vector::broadcast(&to.gate_shift)) {}

  inline __attribute__((always_inline)) void leave(typename Vector::Type sum) {
    if (column < output.width) {
      const typename Vector::Mask mask = lanes_of<Vector>(output.width - column);
      const int64_t at = row_at + column;
      if (output.residual) sum = Vector::add(sum, Vector::load_some(output.residual + at, mask));
      sum = Vector::clip(sum, low, high);
      if (output.gated) sum = gated<Vector>(sum, scale, shift);
      Vector::store_some(output.y + at, sum, mask);
    }
    column += Vector::kLanes;
    if (column < output.pitch) return;
    column = 0;
    row_at += output.width;
  }
};

// kVectors vectors of sums stay in registers while all taps add to them.
template <typename Vector, int kVectors>
inline __attribute__((always_inline)) void sum_vectors(const float* padded, const FilterTaps& taps,
                                                       float bias, FilterWriter<Vector>& writer) {
  typename Vector::Type sum[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) sum[v] = Vector::broadcast(&bias);
  const size_t count = taps.count;
  const float* weights = taps.weights;
  const int32_t* places = taps.places;
  const int64_t* offsets = taps.offsets;
  for (size_t t = 0; t < count; ++t)
    Vector::template add_tap<kVectors>(padded, offsets[places[t]], Vector::broadcast(weights + t),
                                       sum);
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) writer.leave(sum[v]);
}

template <typename Vector>
void sum_filter(const float* padded, const FilterTaps& taps, float bias,
                const FilterOutput& output) {
  constexpr int64_t kLanes = Vector::kLanes;
  const int64_t count = (output.rows - 1) * output.pitch + output.width;
  FilterWriter<Vector> writer(output);
  int64_t at = 0;
  for (; at + 7 * kLanes < count; at += 8 * kLanes)
    sum_vectors<Vector, 8>(padded + at, taps, bias, writer);
  for (; at + 3 * kLanes < count; at += 4 * kLanes)
    sum_vectors<Vector, 4>(padded + at, taps, bias, writer);
  for (; at + kLanes < count; at += 2 * kLanes)
    sum_vectors<Vector, 2>(padded + at, taps, bias, writer);
  for (; at < count; at += kLanes) sum_vectors<Vector, 1>(padded + at, taps, bias, writer);
}

// A tap's pixels, at any alignment.
template <typename Vector, int kVectors>
inline __attribute__((always_inline)) void add_unaligned(const float* padded, int64_t offset,
                                                         typename Vector::Type weight,
                                                         typename Vector::Type (&sum)[kVectors]) {
  const float* x = padded + offset;
  // Keeps the address in one register for all vectors.
  asm("" : "+r"(x));
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v)
    sum[v] = Vector::fma(weight, Vector::load_any(x + v * Vector::kLanes), sum[v]);
}

// A limited number of pixels, at any alignment.
template <typename Vector, int kVectors>
inline __attribute__((always_inline)) void sum_unaligned(const float* x, const FilterTaps& taps,
                                                         float bias, int64_t left,
                                                         FilterWriter<Vector>& writer) {
  typename Vector::Type sum[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) sum[v] = Vector::broadcast(&bias);
  const typename Vector::Mask mask = lanes_of<Vector>(left);
  const size_t count = taps.count;
  for (size_t t = 0; t < count; ++t) {
    const typename Vector::Type weight = Vector::broadcast(taps.weights + t);
    const int64_t offset = taps.offsets[taps.places[t]];
    if (kVectors == 1)
      sum[0] = Vector::fma(weight, Vector::load_some(x + offset, mask), sum[0]);
    else
      add_unaligned<Vector>(x, offset, weight, sum);
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) writer.leave(sum[v]);
}

template <typename Vector>
void sum_pixels_in_place(const float* x, const FilterTaps& taps, float bias,
                         const FilterOutput& output) {
  constexpr int64_t kLanes = Vector::kLanes;
  FilterWriter<Vector> writer(output);
  int64_t at = 0;
  for (; at + 8 * kLanes <= output.width; at += 8 * kLanes)
    sum_unaligned<Vector, 8>(x + at, taps, bias, kLanes, writer);
  for (; at < output.width; at += kLanes)
    sum_unaligned<Vector, 1>(x + at, taps, bias, output.width - at, writer);
}

template <typename Vector>
constexpr DirectConvOps direct_conv_ops() {
  return {Vector::kLanes, copy_rows<Vector>, split_rows<Vector>, sum_filter<Vector>,
          sum_pixels_in_place<Vector>};
}

}  // namespace
}  // namespace fanin
