// A window of 64 columns for one sample. Dot products are of signed bytes, see
// i8_gemm_quads16_dotprod.cc.
#include "kernels/quantized_window_neon_core.h"
#include "kernels/quantized_window_tables.h"

namespace fanin {
namespace {

struct Dot {
  int32x4_t sum = vdupq_n_s32(0);
  void add(int8x16_t x, int8x16_t weights) { sum = vdotq_s32(sum, x, weights); }
  int32x4_t total() const { return sum; }
};

}  // namespace

constexpr QuantizedWindowOps kQuantizedWindow64Dotprod = {
    kGeometry, sum_bytes<Dot>, 1, finish<kGeometry.rows>, 0.01, QuantizedType::kInt8};

}  // namespace fanin
