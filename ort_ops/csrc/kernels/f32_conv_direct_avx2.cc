#include "kernels/conv_tables.h"
#include "kernels/direct_conv_core.h"
#include "kernels/panel_avx2_vector.h"

namespace fanin {
namespace {

struct Pixels : Avx2 {
  // The shuffle selects within each half; the permute restores the order of the pairs.
  static Type evens(Type low, Type high) {
    return ordered(_mm256_shuffle_ps(low, high, _MM_SHUFFLE(2, 0, 2, 0)));
  }
  static Type odds(Type low, Type high) {
    return ordered(_mm256_shuffle_ps(low, high, _MM_SHUFFLE(3, 1, 3, 1)));
  }

  template <int kVectors>
  static inline __attribute__((always_inline)) void add_tap(const float* padded, int64_t offset,
                                                            Type weight, Type (&sum)[kVectors]) {
    add_unaligned<Pixels>(padded, offset, weight, sum);
  }

 private:
  static Type ordered(Type pairs) {
    return _mm256_castpd_ps(
        _mm256_permute4x64_pd(_mm256_castps_pd(pairs), _MM_SHUFFLE(3, 1, 2, 0)));
  }
};

}  // namespace

constexpr DirectConvOps kDirectConvAvx2 = direct_conv_ops<Pixels>();

}  // namespace fanin
