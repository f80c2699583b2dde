// The reference of int8 layers. Tests compare every other kernel with it.
#include "core/quantized_gemm.h"
#include "kernels/quantized_finish.h"

namespace fanin {

void run_plain_quantized(const CondensedView& view, const QuantizedInput& x, int64_t batch, void* y,
                         const QuantizedEpilogue& epilogue) {
  const FinishBounds bounds = finish_bounds(epilogue);
  const auto* values = static_cast<const int8_t*>(view.values);
  for (int64_t b = 0; b < batch; ++b)
    visit_sample(x, b, view.in_features, [&](const auto& sample) {
      int64_t stored = 0;
      for (int64_t o = 0; o < view.out_features; ++o) {
        int32_t sum = 0;
        if (stored < view.active && view.rows[stored] == o) {
          // Padding holds 0.
          for (int64_t j = 0; j < view.fan_in; ++j)
            sum += values[stored * view.fan_in + j] * sample[view.index(stored, j)];
          ++stored;
        }
        finish_output(epilogue, bounds, sum, b, o, view.out_features, y);
      }
    });
}

}  // namespace fanin
