// The sums of a part with four samples in a register; a multiply-add takes its weight from a lane
// of another register, so that one load brings the weights of four rows and no broadcast is needed.
// Only for translation units of NEON, as panel_core.h is for those of x86.
#pragma once

#include <arm_neon.h>

#include "kernels/panel_ahead.h"
#include "kernels/panel_epilogue.h"
#include "kernels/panel_ops.h"

namespace fanin {
namespace {

struct Neon {
  using Type = float32x4_t;
  using Four = float32x4_t;  // the weights of four rows
  static constexpr int kLanes = 4;
  static Type load(const float* from) { return vld1q_f32(from); }
  static Four load4(const float* from) { return vld1q_f32(from); }
  template <int kRow>
  static Type multiply_add(Type sum, const float* x, Four weights) {
    return vfmaq_laneq_f32(sum, vld1q_f32(x), weights, kRow);
  }
  // Adds integers to those of int32 at `to`, or replaces them.
  static void add_integers(float* to, Type value, bool replaces) {
    int32x4_t whole = vcvtnq_s32_f32(value);
    int32_t* integers = reinterpret_cast<int32_t*>(to);
    if (!replaces) whole = vaddq_s32(whole, vld1q_s32(integers));
    vst1q_s32(integers, whole);
  }
  static void store(float* to, Type value) { vst1q_f32(to, value); }
  static Type broadcast(const float* from) { return vld1q_dup_f32(from); }

  // A number of lanes: there are no masked loads.
  using Mask = int;
  static Mask first(int count) { return count < 0 ? 0 : count > kLanes ? kLanes : count; }
  static Type load_some(const float* from, Mask count) {
    if (count == kLanes) return vld1q_f32(from);
    float lanes[kLanes] = {};
    for (int i = 0; i < count; ++i) lanes[i] = from[i];
    return vld1q_f32(lanes);
  }
  static void store_some(float* to, Type value, Mask count) {
    if (count == kLanes) return vst1q_f32(to, value);
    float lanes[kLanes];
    vst1q_f32(lanes, value);
    for (int i = 0; i < count; ++i) to[i] = lanes[i];
  }
  static Type load_any(const float* from) { return vld1q_f32(from); }
  static Type add(Type a, Type b) { return vaddq_f32(a, b); }
  static Type mul(Type a, Type b) { return vmulq_f32(a, b); }
  static Type fma(Type a, Type b, Type c) { return vfmaq_f32(c, a, b); }

  // Comparisons instead of max and min: NaN stays NaN and -0 stays -0, as in Epilogue::apply.
  static Type clip(Type value, Type low, Type high) {
    value = vbslq_f32(vcltq_f32(value, low), low, value);
    return vbslq_f32(vcgtq_f32(value, high), high, value);
  }
};

// Sums of four rows; kVectors vectors of samples each. Half a group at a time: of the 32 registers,
// 16 hold sums with a tile of 16 samples, and twice as many would leave none for x.
constexpr int kRows = 4;

// sum[kRow] += weights[kRow] * x, where x is at offset kRow of the four.
template <typename Vector, int kRow, int kVectors>
inline __attribute__((always_inline)) void add_row(const char* panel, uint64_t offsets,
                                                   typename Vector::Four weights,
                                                   typename Vector::Type (&sum)[kRows][kVectors]) {
  constexpr size_t kScale = kVectors / 2;  // tile width / 8, see kPanelOffsetsPerColumn
  const uint16_t offset = static_cast<uint16_t>(offsets >> 16 * kRow);
  const float* x = reinterpret_cast<const float*>(panel + offset * kScale);
  // Keeps the address in one register, so that a load brings a pair of vectors, and rows in pairs:
  // with the loads of all four first, GCC spills.
  asm("" : "+r"(x) : "w"(sum[(kRow + 2) % kRows][kVectors - 1]));
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v)
    sum[kRow][v] = Vector::template multiply_add<kRow>(sum[kRow][v], x + 4 * v, weights);
}

template <typename Vector, int kVectors, typename End = ToSums>
void sum_part(const PanelPart& part, const float* segment, const float* bias, float* sums,
              PanelAhead& ahead, const End& end = {}) {
  constexpr int kWidth = 4 * kVectors;
  const float* weights = reinterpret_cast<const float*>(part.weights);
  const uint16_t* offsets = part.offsets;
  const uint16_t* rows = part.rows;
  for (size_t run = 0; run < part.run_count; ++run) {
    const size_t steps = part.runs[run].steps;
    for (uint32_t group = 0; group < part.runs[run].groups; ++group) {
      fetch_ahead(ahead);
      end.fetch(rows);
      for (int half = 0; half < kPanelGroupRows; half += kRows, rows += kRows)
        for (int strip = 0; strip < end.strip_count(); ++strip) {
          const char* panel = reinterpret_cast<const char*>(segment + end.panel_at(strip));
          float* strip_sums = sums + end.sums_at(strip);
          typename Vector::Type sum[kRows][kVectors];
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v)
              sum[r][v] = end.template start<Vector>(bias ? bias + rows[r] : nullptr,
                                                     strip_sums + rows[r] * kWidth + 4 * v);
          const float* weight = weights + half;
          const uint16_t* offset = offsets + half;
          for (size_t step = 0; step < steps;
               ++step, weight += kPanelGroupRows, offset += kPanelGroupRows) {
            const typename Vector::Four four = Vector::load4(weight);
            // One load reads four offsets, since wide tiles are bound by loads.
            uint64_t four_offsets;
            __builtin_memcpy(&four_offsets, offset, sizeof four_offsets);
            add_row<Vector, 0>(panel, four_offsets, four, sum);
            add_row<Vector, 1>(panel, four_offsets, four, sum);
            add_row<Vector, 2>(panel, four_offsets, four, sum);
            add_row<Vector, 3>(panel, four_offsets, four, sum);
          }
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r)
            end.template leave<Vector, kVectors>(sum[r], rows[r], strip_sums + rows[r] * kWidth,
                                                 strip);
        }
      weights += steps * kPanelGroupRows;
      offsets += steps * kPanelGroupRows;
    }
  }
}

}  // namespace
}  // namespace fanin
