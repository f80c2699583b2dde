// Dot products of bytes for AVX-512 VNNI, without a permute. Tiles of 64 samples use each load of
// weights for four vectors: half a group of rows at a time.
#include "kernels/quantized_finish_avx512.h"
#include "kernels/quantized_panel_avx512.h"
#include "kernels/quantized_panel_tables.h"
#include "kernels/quantized_quads256.h"

namespace fanin {
namespace {

struct Quads512 {
  using Type = __m512i;
  static constexpr int kLanes = 16;
  static constexpr bool kBroadcastsFromMemory = false;
  static Type load(const float* from) { return _mm512_load_si512(from); }
  static void store(float* to, Type value) { _mm512_store_si512(to, value); }
  static Type broadcast(const float* from) { return _mm512_castps_si512(_mm512_set1_ps(*from)); }
  static Type broadcast4(const float* from) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Type lane(Type four, int i) {
    switch (i) {
      case 0:
        return _mm512_shuffle_epi32(four, _MM_PERM_AAAA);
      case 1:
        return _mm512_shuffle_epi32(four, _MM_PERM_BBBB);
      case 2:
        return _mm512_shuffle_epi32(four, _MM_PERM_CCCC);
      default:
        return _mm512_shuffle_epi32(four, _MM_PERM_DDDD);
    }
  }
  // With the intrinsic, GCC 12 keeps copies of the sums and spills them.
  static Type fma(Type weights, Type x, Type sum) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(weights));
    return sum;
  }
};

// Next to four vectors of x, loads of weights matter less than the port that permutes, which
// products need as well (Sapphire Rapids: -6 % of time).
struct Quads512Loads : Quads512 {
  static constexpr bool kBroadcastsFromMemory = true;
};

void sum(const PanelPart& part, const float* segment, const float* bias, int width, float* sums,
         PanelAhead& ahead) {
  switch (width) {
    case 8:
      return sum_part<Quads256, 1, 8>(part, segment, bias, sums, ahead);
    case 16:
      return sum_part<Quads512, 1, 8>(part, segment, bias, sums, ahead);
    case 32:
      return sum_part<Quads512, 2, 8>(part, segment, bias, sums, ahead);
    default:
      return sum_part<Quads512Loads, 4, 4>(part, segment, bias, sums, ahead);
  }
}

}  // namespace

constexpr QuantizedPanelOps kQuantizedQuads64Avx512vnni = {
    true, QuantizedType::kUint8, 64, 8, 0.00002, fill_bytes16<PutQuads16>, sum, drain16};

}  // namespace fanin
