// A window of 128 columns for two samples, which read its weights nearly as fast as one does.
#include "kernels/quantized_window_core.h"
#include "kernels/quantized_window_tables.h"

namespace fanin {
namespace {

constexpr int kRows = 64;

void sum(const QuantizedSteps& steps, const uint8_t* const* samples, int count, int32_t* sums) {
  sum_filled<kRows, 128, 2>(steps, samples, count, sums);
}

}  // namespace

constexpr QuantizedWindowOps kQuantizedWindow128TwoAvx512vbmi = {
    {kRows, 128, 1}, sum, 2, finish<kRows>, 0.0055};

}  // namespace fanin
