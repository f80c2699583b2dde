// Exact float32 products for CPUs without VNNI: their multiply-adds are at least as many a cycle as
// those of 16-bit integers, which take an addition besides.
#include "kernels/panel_avx2_vector.h"
#include "kernels/panel_avx512_vector.h"
#include "kernels/quantized_finish_avx512.h"
#include "kernels/quantized_panel_avx512.h"
#include "kernels/quantized_panel_tables.h"

namespace fanin {
namespace {

void sum(const PanelPart& part, const float* segment, const float* bias, int width, float* sums,
         PanelAhead& ahead) {
  const ToIntegers end{{}, bias != nullptr};
  switch (width) {
    case 8:
      return sum_part<Avx2, 1, 8>(part, segment, bias, sums, ahead, end);
    case 16:
      return sum_part<Avx512, 1, 8>(part, segment, bias, sums, ahead, end);
    default:
      return sum_part<Avx512, 2, 8>(part, segment, bias, sums, ahead, end);
  }
}

}  // namespace

constexpr QuantizedPanelOps kQuantizedPanel32Avx512bw = {
    false, QuantizedType::kUint8, 32, 8, 0.000024, fill_bytes16<PutWidened16>, sum, drain16};

}  // namespace fanin
