#include "kernels/panel_avx2_vector.h"
#include "kernels/panel_core.h"
#include "kernels/panel_tables.h"
#include "kernels/panel_transpose8.h"

namespace fanin {
namespace {

// 8 sums and the weights fill the 16 registers.
void sum(const PanelPart& part, const float* segment, const float* bias, int width, float* sums,
         PanelAhead& ahead) {
  if (width == 8) return sum_part<Avx2, 1, 8>(part, segment, bias, sums, ahead);
  sum_part<Avx2, 2, 4>(part, segment, bias, sums, ahead);
}

}  // namespace

constexpr PanelOps kPanel16Avx2 = {PanelEntry::kFloat, 16, 8, 0.00007, fill, sum, drain};

}  // namespace fanin
