// Exact float32 products, as i8_gemm_panel32_avx512bw.cc.
#include "kernels/panel_avx2_vector.h"
#include "kernels/quantized_finish_avx2.h"
#include "kernels/quantized_panel_core.h"
#include "kernels/quantized_panel_tables.h"

namespace fanin {
namespace {

void sum(const PanelPart& part, const float* segment, const float* bias, int width, float* sums,
         PanelAhead& ahead) {
  const ToIntegers end{{}, bias != nullptr};
  if (width == 8) return sum_part<Avx2, 1, 8>(part, segment, bias, sums, ahead, end);
  sum_part<Avx2, 2, 4>(part, segment, bias, sums, ahead, end);
}

}  // namespace

constexpr QuantizedPanelOps kQuantizedPanel16Avx2 = {false,   QuantizedType::kUint8,   16,  8,
                                                     0.00007, fill_bytes8<PutWidened>, sum, drain8};

}  // namespace fanin
