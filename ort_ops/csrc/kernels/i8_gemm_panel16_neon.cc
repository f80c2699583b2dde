// Exact float32 products for CPUs without dot products of bytes, as i8_gemm_panel32_avx512bw.cc.
#include "kernels/quantized_panel_neon.h"
#include "kernels/quantized_panel_tables.h"

namespace fanin {
namespace {

void sum(const PanelPart& part, const float* segment, const float* bias, int width, float* sums,
         PanelAhead& ahead) {
  const ToIntegers end{{}, bias != nullptr};
  if (width == 8) return sum_part<Neon, 2>(part, segment, bias, sums, ahead, end);
  sum_part<Neon, 4>(part, segment, bias, sums, ahead, end);
}

}  // namespace

constexpr QuantizedPanelOps kQuantizedPanel16Neon = {false,   QuantizedType::kUint8,   16,  8,
                                                     0.00012, fill_bytes4<PutWidened>, sum, drain4};

}  // namespace fanin
