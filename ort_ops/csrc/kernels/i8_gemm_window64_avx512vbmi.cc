// A window of 64 columns for up to 8 samples, which share the indices and weights of a step. vpermb
// looks up as much as vpermi2b with one micro-operation instead of three on Intel CPUs, which pays
// for the narrower window.
#include "kernels/quantized_window_run.h"
#include "kernels/quantized_window_tables.h"

namespace fanin {
namespace {

constexpr int kRows = 32;
constexpr int kColumns = 64;

void sum(const QuantizedSteps& steps, const uint8_t* const* samples, int count, int32_t* sums) {
  if (count > 6) return sum_filled<kRows, kColumns, 8>(steps, samples, count, sums);
  if (count > 4) return sum_filled<kRows, kColumns, 6>(steps, samples, count, sums);
  if (count > 2) return sum_filled<kRows, kColumns, 4>(steps, samples, count, sums);
  return sum_filled<kRows, kColumns, 2>(steps, samples, count, sums);
}

}  // namespace

constexpr QuantizedWindowOps kQuantizedWindow64Avx512vbmi = {
    {kRows, kColumns, 1}, sum, 8, finish<kRows>, 0.0062, QuantizedType::kUint8,
    run_group<kColumns>};

}  // namespace fanin
