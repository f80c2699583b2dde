#include <immintrin.h>

#include "kernels/quantize_core.h"

namespace fanin {
namespace {

struct Vectors {
  static constexpr int kLanes = 8;
  using Floats = __m256;
  using Flags = __m256;

  // Once, and not again as an operand of each use.
  static Floats load(const float* from) {
    Floats line = _mm256_loadu_ps(from);
    asm("" : "+x"(line));
    return line;
  }
  static Floats broadcast(float value) { return _mm256_set1_ps(value); }
  static Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
  static Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
  static Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats divide(Floats a, Floats b) { return _mm256_div_ps(a, b); }

  static Flags no_flags() { return _mm256_setzero_ps(); }
  static Flags flag_nan(Flags flags, Floats a, Floats b) {
    return _mm256_or_ps(flags, _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
  }
  static bool flagged(Flags flags) { return _mm256_movemask_ps(flags) != 0; }
  static float lowest(Floats a) {
    float all[kLanes], least = 0.0f;
    _mm256_storeu_ps(all, a);
    for (float one : all) least = one < least ? one : least;
    return least;
  }
  static float highest(Floats a) { return -lowest(_mm256_sub_ps(_mm256_setzero_ps(), a)); }

  static bool farthest_at_least(const Floats (&four)[4], float bound) {
    const Floats sign = _mm256_set1_ps(-0.0f);
    const auto distance = [sign](Floats a) {
      constexpr int kToInteger = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
      return _mm256_andnot_ps(sign, _mm256_sub_ps(a, _mm256_round_ps(a, kToInteger)));
    };
    const Floats most =
        max(max(distance(four[0]), distance(four[1])), max(distance(four[2]), distance(four[3])));
    return _mm256_movemask_ps(_mm256_cmp_ps(most, broadcast(bound), _CMP_GE_OQ)) != 0;
  }

  static __m256i zero_points(float value) { return _mm256_set1_epi16(static_cast<int16_t>(value)); }
  static void store(const Floats (&four)[4], __m256i zero_points, uint8_t* to) {
    const auto narrowed = [zero_points](Floats a, Floats b) {
      return _mm256_adds_epi16(_mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b)),
                               zero_points);
    };
    const __m256i bytes =
        _mm256_packus_epi16(narrowed(four[0], four[1]), narrowed(four[2], four[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(bytes, order));
  }
};

}  // namespace

constexpr QuantizeOps kQuantizeAvx2 = {range_of<Vectors>, quantize_numbers<Vectors>, 1e-4};

}  // namespace fanin
