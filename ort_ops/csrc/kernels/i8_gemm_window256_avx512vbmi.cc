// A window of 256 columns for one sample: more work, but fewer bytes, for weights that do not stay
// in the second-level cache.
#include "kernels/quantized_window_core.h"
#include "kernels/quantized_window_tables.h"

namespace fanin {
namespace {

constexpr int kRows = 64;

void sum(const QuantizedSteps& steps, const uint8_t* const* samples, int, int32_t* sums) {
  sum_samples<kRows, 256, 1>(steps, samples, sums);
}

}  // namespace

constexpr QuantizedWindowOps kQuantizedWindow256Avx512vbmi = {
    {kRows, 256, 1}, sum, 1, finish<kRows>, 0.0065};

}  // namespace fanin
