#include "kernels/conv_tables.h"
#include "kernels/depthwise_conv_core.h"
#include "kernels/panel_neon_core.h"
#include "kernels/panel_tables.h"

namespace fanin {
namespace {

struct Lanes : Neon {
  static Type load(const float* from) { return vld1q_f32(from); }
};

}  // namespace

constexpr DepthwiseConvOps kDepthwiseConv4Neon = {4, kPanel16Neon, sum_channels<Lanes>};

}  // namespace fanin
