// A window without byte permutes: vpermi2w looks up 32 of 64 pairs of neighboring columns, most of
// them with one weight. Quads, of which vpermi2d looks up 16 with one micro-operation instead of
// three, take 20 to 50 % more time: their 5 bytes for 1.2 weights are more to load than 3 for 1.05.
#include "kernels/quantized_finish_avx512.h"
#include "kernels/quantized_window_tables.h"

namespace fanin {
namespace {

constexpr QuantizedWindowGeometry kGeometry{64, 128, 16, 2};
constexpr int kVectors = kGeometry.rows / 16;
constexpr int kStepBytes = kGeometry.step_bytes();

inline __m512i load_line(const uint8_t* from) {
  __m512i line = _mm512_loadu_si512(from);
  asm("" : "+v"(line));
  return line;
}

// Samples share the loads of indices and weights. Every loop over an array of registers is
// unrolled, else the array is kept in memory.
template <int kSamples>
void sum_samples(const QuantizedSteps& steps, const uint8_t* const* samples, int32_t* sums) {
  __m512i sum[kSamples][kVectors];
  const uint8_t* x[kSamples];
#pragma GCC unroll 4
  for (int s = 0; s < kSamples; ++s) {
    x[s] = samples[s];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[s][v] = _mm512_setzero_si512();
  }
  const uint8_t* step = steps.data;
  for (size_t i = 0; i < steps.count; ++i, step += kStepBytes) {
    const size_t at = steps.displacements[i];
    __m512i index[kVectors], weights[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      // The permute ignores the bits above its index.
      index[v] = v % 2 == 0 ? load_line(step + 32 * v) : _mm512_srli_epi16(index[v - 1], 8);
      weights[v] = load_line(step + kGeometry.first_weight() + 64 * v);
    }
#pragma GCC unroll 4
    for (int s = 0; s < kSamples; ++s) {
      const __m512i low = load_line(x[s] + at), high = load_line(x[s] + at + 64);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const __m512i found = _mm512_permutex2var_epi16(low, index[v], high);
        // With the intrinsic, GCC 12 keeps copies of the sums and spills them.
        asm("vpdpbusd %2, %1, %0" : "+v"(sum[s][v]) : "v"(found), "v"(weights[v]));
      }
    }
    // One sample takes the weights as fast as they come.
    if constexpr (kSamples == 1) {
      constexpr int kAhead = 4096;
#pragma GCC unroll 8
      for (int line = 0; line < kStepBytes; line += 64)
        _mm_prefetch(reinterpret_cast<const char*>(step) + kAhead + line, _MM_HINT_T0);
    }
  }
#pragma GCC unroll 4
  for (int s = 0; s < kSamples; ++s)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      _mm512_store_si512(sums + s * kGeometry.rows + 16 * v, sum[s][v]);
}

void sum(const QuantizedSteps& steps, const uint8_t* const* samples, int count, int32_t* sums) {
  if (count == 1) return sum_samples<1>(steps, samples, sums);
  if (count == 2) return sum_samples<2>(steps, samples, sums);
  // The fourth of three is repeated: its sums are computed and not used.
  const uint8_t* four[4] = {samples[0], samples[1], samples[2], samples[count - 1]};
  sum_samples<4>(steps, four, sums);
}

}  // namespace

constexpr QuantizedWindowOps kQuantizedWindow128PairsAvx512vnni = {kGeometry, sum, 4,
                                                                   finish<kGeometry.rows>, 0.01};

}  // namespace fanin
