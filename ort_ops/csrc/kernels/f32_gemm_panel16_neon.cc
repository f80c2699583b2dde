#include "kernels/panel_neon_core.h"
#include "kernels/panel_tables.h"
#include "kernels/panel_transpose4.h"

namespace fanin {
namespace {

void sum(const PanelPart& part, const float* segment, const float* bias, int width, float* sums,
         PanelAhead& ahead) {
  if (width == 8) return sum_part<Neon, 2>(part, segment, bias, sums, ahead);
  sum_part<Neon, 4>(part, segment, bias, sums, ahead);
}

void fill(const float* x, int64_t in_features, int samples, int64_t columns, int width,
          float* segment) {
  fill_zeros4(segment, width);
  fill4(x, 4 * in_features, samples, 4 * columns, width, PutFloats{segment, width});
}

// Up to 4 samples times up to 4 rows of sums.
void drain_block(const float* sums, int64_t rows, int width, int samples, const PanelOutput& output,
                 float* y, const float* residual) {
  const float32x4_t low = vdupq_n_f32(output.clip_min), high = vdupq_n_f32(output.clip_max);
  if (rows >= 4) {
    float32x4_t sample[4];
    transpose4(RowPointers(sums, int64_t{4} * width, 4), 0, sample);
    for (int i = 0; i < 4 && i < samples; ++i) {
      float32x4_t value = sample[i];
      if (residual) value = vaddq_f32(value, vld1q_f32(residual + i * output.out_features));
      vst1q_f32(y + i * output.out_features, Neon::clip(value, low, high));
    }
    return;
  }
  for (int i = 0; i < 4 && i < samples; ++i)
    for (int64_t r = 0; r < rows; ++r) {
      float32x4_t value = vld1q_dup_f32(sums + r * width + i);
      if (residual) value = vaddq_f32(value, vld1q_dup_f32(residual + i * output.out_features + r));
      vst1q_lane_f32(y + i * output.out_features + r, Neon::clip(value, low, high), 0);
    }
}

// One sample after another, so that writes are sequential.
void drain(const float* sums, int64_t rows, int width, int samples, const PanelOutput& output) {
  for (int s = 0; s < samples; s += 4)
    for (int64_t r = 0; r < rows; r += 4) {
      const int64_t at = s * output.out_features + r;
      drain_block(sums + r * width + s, rows - r, width, samples - s, output, output.y + at,
                  output.residual ? output.residual + at : nullptr);
    }
}

}  // namespace

constexpr PanelOps kPanel16Neon = {PanelEntry::kFloat, 16, 8, 0.00012, fill, sum, drain};

}  // namespace fanin
