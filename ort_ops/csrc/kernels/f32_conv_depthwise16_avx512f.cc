#include "kernels/conv_tables.h"
#include "kernels/depthwise_conv_core.h"
#include "kernels/panel_avx512_vector.h"
#include "kernels/panel_tables.h"

namespace fanin {

constexpr DepthwiseConvOps kDepthwiseConv16Avx512f = {16, kPanel32Avx512f, sum_channels<Avx512>};

}  // namespace fanin
