#include "kernels/conv_tables.h"
#include "kernels/direct_conv_core.h"
#include "kernels/panel_neon_core.h"

namespace fanin {
namespace {

struct Pixels : Neon {
  static Type evens(Type low, Type high) { return vuzp1q_f32(low, high); }
  static Type odds(Type low, Type high) { return vuzp2q_f32(low, high); }

  template <int kVectors>
  static inline __attribute__((always_inline)) void add_tap(const float* padded, int64_t offset,
                                                            Type weight, Type (&sum)[kVectors]) {
    add_unaligned<Pixels>(padded, offset, weight, sum);
  }
};

}  // namespace

constexpr DirectConvOps kDirectConvNeon = direct_conv_ops<Pixels>();

}  // namespace fanin
