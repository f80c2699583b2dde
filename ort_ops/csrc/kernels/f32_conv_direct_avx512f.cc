#include "kernels/conv_tables.h"
#include "kernels/direct_conv_core.h"
#include "kernels/panel_avx512_vector.h"

namespace fanin {
namespace {

struct Pixels : Avx512 {
  static Type evens(Type low, Type high) { return pick(low, high, 0); }
  static Type odds(Type low, Type high) { return pick(low, high, 1); }

  // A load that crosses cache lines takes 2.7 cycles; two aligned loads and a permute take one.
  template <int kVectors>
  static inline __attribute__((always_inline)) void add_tap(const float* padded, int64_t offset,
                                                            Type weight, Type (&sum)[kVectors]) {
    const float* x = padded + (offset & -kLanes);
    asm("" : "+r"(x));
    const int shift = static_cast<int>(offset % kLanes);
    if (shift == 0) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[v] = fma(weight, load(x + v * kLanes), sum[v]);
      return;
    }
    const __m512i from =
        _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                         _mm512_set1_epi32(shift));
    Type low = load(x);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Type high = load(x + (v + 1) * kLanes);
      sum[v] = fma(weight, _mm512_permutex2var_ps(low, from, high), sum[v]);
      low = high;
    }
  }

 private:
  static Type pick(Type low, Type high, int first) {
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_ps(low, _mm512_add_epi32(even, _mm512_set1_epi32(first)), high);
  }
};

}  // namespace

constexpr DirectConvOps kDirectConvAvx512f = direct_conv_ops<Pixels>();

}  // namespace fanin
