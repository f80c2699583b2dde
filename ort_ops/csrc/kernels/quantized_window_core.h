// The sums of a window kernel of int8 layers: a byte permute looks up 64 values of x, and a dot
// product of bytes adds them to the sums of 16 rows, four weights each. A template over the rows of
// a group, the columns of the window and the samples. Only for translation units of one instruction
// set: everything has internal linkage.
#pragma once

#include <immintrin.h>

#include "kernels/quantized_finish_avx512.h"
#include "kernels/quantized_window_ops.h"

namespace fanin {
namespace {

// With the intrinsic, GCC 12 keeps copies of the sums and spills them: 30 % more time.
inline __m512i add_dot(__m512i sum, __m512i x, __m512i weights) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(weights));
  return sum;
}

// Loaded once, and not again as an operand of each use.
inline __m512i load_line(const uint8_t* from) {
  __m512i line = _mm512_loadu_si512(from);
  asm("" : "+v"(line));
  return line;
}

// The columns of x from one place on.
template <int kColumns>
struct Window {
  __m512i part[kColumns / 64];

  explicit Window(const uint8_t* from) {
#pragma GCC unroll 4
    for (int i = 0; i < kColumns / 64; ++i) part[i] = load_line(from + 64 * i);
  }

  __m512i look_up(__m512i index) const {
    if constexpr (kColumns == 64) {
      return _mm512_permutexvar_epi8(index, part[0]);
    } else {
      const __m512i low = _mm512_permutex2var_epi8(part[0], index, part[1]);
      if constexpr (kColumns == 128) return low;
      // An index of 8 bits: its highest says in which half of the window.
      if constexpr (kColumns == 256)
        return _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), low,
                                      _mm512_permutex2var_epi8(part[2], index, part[3]));
    }
  }
};

// Adds the products of all steps to the sums. With kFetchesNext it fetches the line that is `ahead`
// bytes from each step to the caches, with kFetchesAhead the weights of later steps. Every loop
// over an array of registers is unrolled, else the array is kept in memory.
template <int kRows, int kColumns, int kSamples, bool kFetchesNext, bool kFetchesAhead>
[[gnu::always_inline]] inline void add_steps(const QuantizedSteps& steps,
                                             const uint8_t* const (&x)[kSamples],
                                             __m512i (&sum)[kSamples][kRows / 16],
                                             uintptr_t ahead = 0) {
  constexpr int kVectors = kRows / 16;
  const uint8_t* step = steps.data;
  for (size_t i = 0; i < steps.count; ++i, step += 8 * kRows) {
    if constexpr (kFetchesNext)
      _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(step) + ahead),
                   _MM_HINT_T0);
    const size_t at = steps.displacements[i];
    __m512i index[kVectors], weights[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      index[v] = load_line(step + 64 * v);
      weights[v] = load_line(step + 64 * (kVectors + v));
    }
#pragma GCC unroll 8
    for (int s = 0; s < kSamples; ++s) {
      const Window<kColumns> window(x[s] + at);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        sum[s][v] = add_dot(sum[s][v], window.look_up(index[v]), weights[v]);
    }
    // One sample takes the weights as fast as they come; on Zen 5, those of wide groups come 20 to
    // 40 % faster if they are fetched ahead.
    if constexpr (kFetchesAhead) {
      constexpr int kAhead = 4096;
#pragma GCC unroll 8
      for (int line = 0; line < 8 * kRows; line += 64)
        _mm_prefetch(reinterpret_cast<const char*>(step) + kAhead + line, _MM_HINT_T0);
    }
  }
}

template <int kRows, int kColumns, int kSamples, bool kFetchesAhead = kSamples == 1>
void sum_samples(const QuantizedSteps& steps, const uint8_t* const* samples, int32_t* sums) {
  constexpr int kVectors = kRows / 16;
  __m512i sum[kSamples][kVectors];
  const uint8_t* x[kSamples];
#pragma GCC unroll 8
  for (int s = 0; s < kSamples; ++s) {
    x[s] = samples[s];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[s][v] = _mm512_setzero_si512();
  }
  add_steps<kRows, kColumns, kSamples, false, kFetchesAhead>(steps, x, sum);
#pragma GCC unroll 8
  for (int s = 0; s < kSamples; ++s)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) _mm512_store_si512(sums + s * kRows + 16 * v, sum[s][v]);
}

// Up to kSamples samples. Those of a narrower tile are repeated: their sums are computed and not
// used.
template <int kRows, int kColumns, int kSamples>
void sum_filled(const QuantizedSteps& steps, const uint8_t* const* samples, int count,
                int32_t* sums) {
  if (count == kSamples) return sum_samples<kRows, kColumns, kSamples>(steps, samples, sums);
  const uint8_t* filled[kSamples];
  for (int s = 0; s < kSamples; ++s) filled[s] = samples[s < count ? s : count - 1];
  sum_samples<kRows, kColumns, kSamples>(steps, filled, sums);
}

}  // namespace
}  // namespace fanin
