#include "kernels/conv_tables.h"
#include "kernels/depthwise_conv_core.h"
#include "kernels/panel_avx2_vector.h"
#include "kernels/panel_tables.h"

namespace fanin {

constexpr DepthwiseConvOps kDepthwiseConv8Avx2 = {8, kPanel16Avx2, sum_channels<Avx2>};

}  // namespace fanin
