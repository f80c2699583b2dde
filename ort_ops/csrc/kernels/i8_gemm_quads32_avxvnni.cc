// Dot products of bytes for AVX-VNNI, 256 bits wide.
#include "kernels/quantized_finish_avx2.h"
#include "kernels/quantized_panel_core.h"
#include "kernels/quantized_panel_tables.h"
#include "kernels/quantized_quads256.h"

namespace fanin {
namespace {

void sum(const PanelPart& part, const float* segment, const float* bias, int width, float* sums,
         PanelAhead& ahead) {
  if (width == 8) return sum_part<Quads256, 1, 8>(part, segment, bias, sums, ahead);
  if (width == 32) return sum_part<Quads256Loads, 4, 2>(part, segment, bias, sums, ahead);
  sum_part<Quads256, 2, 4>(part, segment, bias, sums, ahead);
}

}  // namespace

constexpr QuantizedPanelOps kQuantizedQuads32Avxvnni = {
    true, QuantizedType::kUint8, 32, 8, 0.00005, fill_bytes8<PutQuads>, sum, drain8};

}  // namespace fanin
