// A window of 64 columns for up to 8 samples, which share the indices and weights of a step. vpermb
// looks up as much as vpermi2b with one micro-operation instead of three on Intel CPUs, which pays
// for the narrower window.
#include "kernels/quantized_window_run.h"
#include "kernels/quantized_window_tables.h"

namespace fanin {
namespace {

constexpr int kRows = 32;
constexpr int kColumns = 64;

// Samples of a narrower tile are repeated: their sums are computed and not used.
template <int kSamples>
void sum_filled(const QuantizedSteps& steps, const uint8_t* const* samples, int count,
                int32_t* sums) {
  const uint8_t* filled[kSamples];
  for (int s = 0; s < kSamples; ++s) filled[s] = samples[s < count ? s : count - 1];
  sum_samples<kRows, kColumns, kSamples>(steps, filled, sums);
}

void sum(const QuantizedSteps& steps, const uint8_t* const* samples, int count, int32_t* sums) {
  if (count == 8) return sum_samples<kRows, kColumns, 8>(steps, samples, sums);
  if (count > 4) return sum_filled<8>(steps, samples, count, sums);
  if (count > 2) return sum_filled<4>(steps, samples, count, sums);
  return sum_filled<2>(steps, samples, count, sums);
}

}  // namespace

constexpr QuantizedWindowOps kQuantizedWindow64Avx512vbmi = {
    {kRows, kColumns, 16}, sum, 8, finish<kRows>, 0.0062, QuantizedType::kUint8,
    run_group<kColumns>};

}  // namespace fanin
