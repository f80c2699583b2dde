#include <immintrin.h>

#include "kernels/quantize_core.h"

namespace fanin {
namespace {

struct Vectors {
  static constexpr int kLanes = 16;
  using Floats = __m512;
  using Flags = __mmask16;

  // Once, and not again as an operand of each use.
  static Floats load(const float* from) {
    Floats line = _mm512_loadu_ps(from);
    asm("" : "+v"(line));
    return line;
  }
  static Floats broadcast(float value) { return _mm512_set1_ps(value); }
  static Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
  static Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats divide(Floats a, Floats b) { return _mm512_div_ps(a, b); }

  static Flags no_flags() { return 0; }
  static Flags flag_nan(Flags flags, Floats a, Floats b) {
    return static_cast<Flags>(flags | _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q));
  }
  static bool flagged(Flags flags) { return flags != 0; }
  static float lowest(Floats a) { return _mm512_reduce_min_ps(a); }
  static float highest(Floats a) { return _mm512_reduce_max_ps(a); }

  // A multiply-add subtracts as exactly, and on Zen 4 where less is to do than in the adders.
  static bool farthest_at_least(const Floats (&four)[4], float bound) {
    constexpr int kLargerMagnitude = 0xb, kToInteger = 0;
    const auto distance = [](Floats a) {
      return _mm512_fmsub_ps(a, _mm512_set1_ps(1.0f), _mm512_roundscale_ps(a, kToInteger));
    };
    const Floats a = _mm512_range_ps(distance(four[0]), distance(four[1]), kLargerMagnitude);
    const Floats b = _mm512_range_ps(distance(four[2]), distance(four[3]), kLargerMagnitude);
    return _mm512_cmp_ps_mask(_mm512_range_ps(a, b, kLargerMagnitude), _mm512_set1_ps(bound),
                              _CMP_GE_OQ) != 0;
  }

  static __m512i zero_points(float value) { return _mm512_set1_epi16(static_cast<int16_t>(value)); }
  static void store(const Floats (&four)[4], __m512i zero_points, uint8_t* to) {
    const auto narrowed = [zero_points](Floats a, Floats b) {
      return _mm512_adds_epi16(_mm512_packs_epi32(_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b)),
                               zero_points);
    };
    const __m512i bytes =
        _mm512_packus_epi16(narrowed(four[0], four[1]), narrowed(four[2], four[3]));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, bytes));
  }
};

}  // namespace

constexpr QuantizeOps kQuantizeAvx512bw = {range_of<Vectors>, quantize_numbers<Vectors>, 5e-5};

}  // namespace fanin
