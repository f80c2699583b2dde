// The sums of a part as a template over a vector type. Only for translation units of one
// instruction set: everything has internal linkage, since each compiles it for its own.
#pragma once

#include <immintrin.h>

#include "kernels/panel_ahead.h"
#include "kernels/panel_epilogue.h"
#include "kernels/panel_ops.h"

namespace fanin {
namespace {

// Sums of kRows rows of a group, times kVectors vectors of samples each, stay in registers.
// Vector: kLanes, kBroadcastsFromMemory (how weights are broadcast), load, store, broadcast (one
// float), broadcast4 (four floats to every 128-bit lane), lane<i> (float i of each 128-bit lane to
// the whole lane), fma; for ends that write y also Mask, first (a mask of the first n lanes),
// load_some, store_some, add, clip; for ToIntegers add_integers. weights and offsets point to the
// first row past the last step; the steps begin `size` bytes of offsets earlier.
template <typename Vector, int kVectors, int kRows, typename End>
inline __attribute__((always_inline)) void sum_rows(const char* weights, const char* offsets,
                                                    ptrdiff_t size, const uint16_t* rows,
                                                    const float* segment, const float* bias,
                                                    float* sums, const End& end, int strip) {
  constexpr int kWidth = kVectors * Vector::kLanes;
  constexpr size_t kScale = kWidth / 8;                            // see kPanelOffsetsPerColumn
  constexpr ptrdiff_t kStep = kPanelGroupRows * sizeof(uint16_t);  // of offsets, half of weights
  // Eight samples take 10 % less time with the places kept in registers, sixteen 2-6 % less with
  // recomputed places; for 32 it makes no difference, and convolutions need the registers (Cascade
  // Lake, GCC 12).
  constexpr bool kKeepsPlaces = kWidth == 8;
  // Two offsets by one load, where loads are the limit: in wide tiles, and with weights from
  // memory.
  constexpr bool kPairs = kVectors > 1 || Vector::kBroadcastsFromMemory;
  const char* panel = reinterpret_cast<const char*>(segment);
  // Keeps the address in one register: GCC would otherwise recompute it for each weight.
  if (!kKeepsPlaces) asm("" : "+r"(panel));
  float* place[kRows];
  typename Vector::Type sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    place[r] = sums + size_t{rows[r]} * kWidth;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      sum[r][v] = end.template start<Vector>(bias ? bias + rows[r] : nullptr,
                                             place[r] + v * Vector::kLanes);
  }
  // Keeps places out of registers, which the loop needs: they are recomputed after it.
  if (!kKeepsPlaces) asm("" : "+r"(rows));
  for (ptrdiff_t at = -size; at != 0; at += kStep) {
    typename Vector::Type four{};
    uint32_t two = 0;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const auto* weight = reinterpret_cast<const float*>(weights + 2 * at + r * sizeof(float));
      typename Vector::Type w;
      if (Vector::kBroadcastsFromMemory) {
        w = Vector::broadcast(weight);
        // Keeps GCC from broadcasting it anew in each multiply-add.
        asm("" : "+v"(w));
      } else {
        // One load serves the weights of four rows: broadcasts from memory would take the load
        // ports that x needs.
        if (r % 4 == 0) four = Vector::broadcast4(weight);
        w = Vector::lane(four, r % 4);
      }
      const char* offset = offsets + at + r * sizeof(uint16_t);
      uint16_t column;
      if (!kPairs) {
        __builtin_memcpy(&column, offset, sizeof column);
      } else {
        if (r % 2 == 0) {
          __builtin_memcpy(&two, offset, sizeof two);
          asm("" : "+r"(two));
        } else {
          two >>= 16;
        }
        column = static_cast<uint16_t>(two);
      }
      if (kVectors == 1) {
        typename Vector::Type x =
            Vector::load(reinterpret_cast<const float*>(panel + column * kScale));
        // Keeps the load separate: a multiply-add with base and index is split in two anyway, and
        // its address would take another instruction (Cascade Lake: -7 % of time).
        asm("" : "+v"(x));
        sum[r][0] = Vector::fma(w, x, sum[r][0]);
        continue;
      }
      const char* x = panel + column * kScale;
      // Keeps the address in one register, for all of the column's vectors.
      asm("" : "+r"(x));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] = Vector::fma(
            w, Vector::load(reinterpret_cast<const float*>(x) + v * Vector::kLanes), sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
    end.template leave<Vector, kVectors>(
        sum[r], rows[r], kKeepsPlaces ? place[r] : sums + size_t{rows[r]} * kWidth, strip);
}

// Sums all rows of a part. A group of 8 rows is computed in two halves if 8 * kVectors sums need
// more registers than there are.
template <typename Vector, int kVectors, int kRows, typename End = ToSums>
void sum_part(const PanelPart& part, const float* segment, const float* bias, float* sums,
              PanelAhead& ahead, const End& end = {}) {
  const char* weights = reinterpret_cast<const char*>(part.weights);
  const char* offsets = reinterpret_cast<const char*>(part.offsets);
  const uint16_t* rows = part.rows;
  for (size_t run = 0; run < part.run_count; ++run) {
    const ptrdiff_t size = part.runs[run].steps * kPanelGroupRows * ptrdiff_t{sizeof(uint16_t)};
    for (uint32_t group = 0; group < part.runs[run].groups; ++group) {
      // One index that counts up to zero addresses both arrays: the loop is bound by the number of
      // its instructions as much as by its multiply-adds.
      offsets += size;
      weights += 2 * size;
      fetch_ahead(ahead);
      end.fetch(rows);
      for (int half = 0; half < kPanelGroupRows; half += kRows, rows += kRows)
        for (int strip = 0; strip < end.strip_count(); ++strip)
          sum_rows<Vector, kVectors, kRows>(
              weights + half * sizeof(float), offsets + half * sizeof(uint16_t), size, rows,
              segment + end.panel_at(strip), bias, sums + end.sums_at(strip), end, strip);
    }
  }
}

}  // namespace
}  // namespace fanin
