// A window of 64 columns for one sample, for CPUs without dot products of bytes.
#include "kernels/quantized_window_neon_core.h"
#include "kernels/quantized_window_tables.h"

namespace fanin {
namespace {

// Products of signed bytes fit 16 bits, and are added in pairs as 32 bits.
struct Dot {
  int32x4_t low = vdupq_n_s32(0), high = vdupq_n_s32(0);
  void add(int8x16_t x, int8x16_t weights) {
    low = vpadalq_s16(low, vmull_s8(vget_low_s8(x), vget_low_s8(weights)));
    high = vpadalq_s16(high, vmull_high_s8(x, weights));
  }
  int32x4_t total() const { return vpaddq_s32(low, high); }
};

}  // namespace

constexpr QuantizedWindowOps kQuantizedWindow64Neon = {
    kGeometry, sum_bytes<Dot>, 1, finish<kGeometry.rows>, 0.02, QuantizedType::kInt8};

}  // namespace fanin
