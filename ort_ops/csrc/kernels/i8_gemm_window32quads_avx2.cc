// A window of 32 columns for one sample. Products are added as 16-bit integers, those of even and
// odd columns by themselves: vpmaddubsw would saturate.
#include "kernels/quantized_window256_core.h"
#include "kernels/quantized_window_tables.h"

namespace fanin {
namespace {

struct Dot {
  static __m256i add(__m256i sum, __m256i x, __m256i weights) {
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(x, _mm256_set1_epi16(0xff)),
                                           _mm256_srai_epi16(_mm256_slli_epi16(weights, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(x, 8), _mm256_srai_epi16(weights, 8));
    return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
  }
};

}  // namespace

constexpr QuantizedWindowOps kQuantizedWindow32QuadsAvx2 = {kGeometry, sum_quads<Dot>, 1,
                                                            finish<kGeometry.rows>, 0.01};

}  // namespace fanin
