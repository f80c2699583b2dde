// A window of 128 columns for one sample. Four sums hide the latency of the dot products.
#include "kernels/quantized_window_core.h"
#include "kernels/quantized_window_tables.h"

namespace fanin {
namespace {

constexpr int kRows = 64;

void sum(const QuantizedSteps& steps, const uint8_t* const* samples, int, int32_t* sums) {
  sum_samples<kRows, 128, 1>(steps, samples, sums);
}

}  // namespace

constexpr QuantizedWindowOps kQuantizedWindow128Avx512vbmi = {
    {kRows, 128, 1}, sum, 1, finish<kRows>, 0.0044};

}  // namespace fanin
