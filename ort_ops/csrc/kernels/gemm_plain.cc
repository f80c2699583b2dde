// The reference: sums in the order of the stored entries. Tests compare every other kernel with it.
#include "core/gemm.h"

namespace fanin {

void run_plain(const CondensedView& view, const float* x, int64_t batch, float* y,
               const Epilogue& epilogue) {
  const bool rounds = view.compute == ValueType::kBfloat16;
  for (int64_t b = 0; b < batch; ++b) {
    const float* in = x + b * view.in_features;
    float* out = y + b * view.out_features;
    const float* residual = epilogue.residual ? epilogue.residual + b * view.out_features : nullptr;
    int64_t stored = 0;
    for (int64_t o = 0; o < view.out_features; ++o) {
      float sum = view.bias[o];
      if (stored < view.active && view.rows[stored] == o) {
        const int64_t entries = view.true_fan_in(stored);
        for (int64_t j = 0; j < entries; ++j) {
          const float value = in[view.index(stored, j)];
          sum += view.value(stored, j) * (rounds ? round_bfloat16(value) : value);
        }
        ++stored;
      }
      if (residual) sum += residual[o];
      out[o] = epilogue.apply(sum);
    }
  }
}

}  // namespace fanin
