// A window of 256 columns for one sample, as window256, for CPUs whose own prefetchers are better:
// on Zen 4, instructions that prefetch slow down reads from the third-level cache by a quarter.
#include "kernels/quantized_window_core.h"
#include "kernels/quantized_window_tables.h"

namespace fanin {
namespace {

constexpr int kRows = 64;

void sum(const QuantizedSteps& steps, const uint8_t* const* samples, int, int32_t* sums) {
  sum_samples<kRows, 256, 1, false>(steps, samples, sums);
}

}  // namespace

constexpr QuantizedWindowOps kQuantizedWindow256NofetchAvx512vbmi = {
    {kRows, 256, 1}, sum, 1, finish<kRows>, 0.005};

}  // namespace fanin
