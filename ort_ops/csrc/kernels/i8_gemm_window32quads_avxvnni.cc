// A window of 32 columns for one sample.
#include "kernels/quantized_quads256.h"
#include "kernels/quantized_window256_core.h"
#include "kernels/quantized_window_tables.h"

namespace fanin {
namespace {

struct Dot {
  static __m256i add(__m256i sum, __m256i x, __m256i weights) {
    return Quads256::fma(weights, x, sum);
  }
};

}  // namespace

constexpr QuantizedWindowOps kQuantizedWindow32QuadsAvxvnni = {kGeometry, sum_quads<Dot>, 1,
                                                               finish<kGeometry.rows>, 0.005};

}  // namespace fanin
