#include "kernels/conv_lane_core.h"
#include "kernels/conv_tables.h"
#include "kernels/panel_avx512_vector.h"
#include "kernels/panel_tables.h"

namespace fanin {

constexpr ConvLaneOps kConvLanes16Avx512f = {16, kPanel32Avx512f, sum_lanes<Avx512>};

}  // namespace fanin
