// A window of 64 columns for 3 or 4 samples. Twice as many rows as for 8 samples have as many sums,
// and share what is loaded of x.
#include "kernels/quantized_window_core.h"
#include "kernels/quantized_window_tables.h"

namespace fanin {
namespace {

constexpr int kRows = 64;

void sum(const QuantizedSteps& steps, const uint8_t* const* samples, int count, int32_t* sums) {
  sum_filled<kRows, 64, 4>(steps, samples, count, sums);
}

}  // namespace

constexpr QuantizedWindowOps kQuantizedWindow64FourAvx512vbmi = {
    {kRows, 64, 1}, sum, 4, finish<kRows>, 0.0066};

}  // namespace fanin
