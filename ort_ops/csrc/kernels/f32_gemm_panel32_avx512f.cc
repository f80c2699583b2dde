#include "kernels/panel_avx2_vector.h"
#include "kernels/panel_avx512_vector.h"
#include "kernels/panel_core.h"
#include "kernels/panel_tables.h"
#include "kernels/panel_transpose16.h"

namespace fanin {
namespace {

// Wide tiles use each load of a weight and its offset for more samples: in a layer, 32 samples run
// at 30-34 multiply-adds per ns, 16 at 22 (Cascade Lake; 80-90 % sparse). 64 samples are no faster,
// since a segment of the panel then leaves L1. 8 samples fit a 256-bit register, which is cheaper
// than half of a 512-bit one.
template <typename Wide>
void sum(const PanelPart& part, const float* segment, const float* bias, int width, float* sums,
         PanelAhead& ahead) {
  switch (width) {
    case 8:
      return sum_part<Avx2, 1, 8>(part, segment, bias, sums, ahead);
    case 16:
      return sum_part<Wide, 1, 8>(part, segment, bias, sums, ahead);
    default:
      return sum_part<Wide, 2, 8>(part, segment, bias, sums, ahead);
  }
}

}  // namespace

constexpr PanelOps kPanel32Avx512f = {PanelEntry::kFloat, 32,     8, 0.000024, fill16,
                                      sum<Avx512>,        drain16};
constexpr PanelOps kPanel32LoadsAvx512f = {PanelEntry::kFloat, 32,     8, 0.000022, fill16,
                                           sum<Avx512Loads>,   drain16};

}  // namespace fanin
