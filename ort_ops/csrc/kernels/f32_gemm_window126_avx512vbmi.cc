#include "kernels/window126_core.h"
#include "kernels/window_tables.h"

namespace fanin {
namespace {

struct Vbmi {
  static __m512i bytes(__m512i a, __m512i index, __m512i b) {
    return _mm512_permutex2var_epi8(a, index, b);
  }
};

}  // namespace

constexpr WindowOps kWindow126Avx512vbmi[kFloatTypes] = {
    ops<Float32Weights, Vbmi>(), ops<Float16Weights, Vbmi>(), ops<Bfloat16Weights, Vbmi>()};

}  // namespace fanin
