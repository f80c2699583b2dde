#include "kernels/conv_lane_core.h"
#include "kernels/conv_tables.h"
#include "kernels/panel_avx2_vector.h"
#include "kernels/panel_tables.h"

namespace fanin {

constexpr ConvLaneOps kConvLanes8Avx2 = {8, kPanel16Avx2, sum_lanes<Avx2>};

}  // namespace fanin
