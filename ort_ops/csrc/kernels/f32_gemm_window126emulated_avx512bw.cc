// The VBMI kernel with its permute emulated in AVX-512BW, so that its packing and its sums can be
// tested on CPUs without VBMI. It is slower than the word planes and never dispatched.
#include "kernels/window126_core.h"
#include "kernels/window_tables.h"

namespace fanin {
namespace {

struct EmulatedVbmi {
  static __m512i bytes(__m512i a, __m512i index, __m512i b) {
    const __m512i even = word_bytes(a, _mm512_and_si512(index, _mm512_set1_epi16(0x7f)), b);
    const __m512i odd =
        word_bytes(a, _mm512_and_si512(_mm512_srli_epi16(index, 8), _mm512_set1_epi16(0x7f)), b);
    return _mm512_or_si512(even, _mm512_slli_epi16(odd, 8));
  }

  // Byte index[i] of a, b in the low byte of word i: the word that holds it, shifted.
  static __m512i word_bytes(__m512i a, __m512i index, __m512i b) {
    const __m512i words = _mm512_permutex2var_epi16(a, _mm512_srli_epi16(index, 1), b);
    const __m512i shift = _mm512_slli_epi16(_mm512_and_si512(index, _mm512_set1_epi16(1)), 3);
    return _mm512_and_si512(_mm512_srlv_epi16(words, shift), _mm512_set1_epi16(0xff));
  }
};

}  // namespace

constexpr WindowOps kWindow126EmulatedAvx512bw[kFloatTypes] = {
    ops<Float32Weights, EmulatedVbmi>(), ops<Float16Weights, EmulatedVbmi>(),
    ops<Bfloat16Weights, EmulatedVbmi>()};

}  // namespace fanin
