#include "kernels/panel_neon_core.h"
#include "kernels/panel_tables.h"

namespace fanin {
namespace {

void sum(const PanelPart& part, const float* segment, const float* bias, int width, float* sums,
         PanelAhead& ahead) {
  if (width == 8) return sum_part<2>(part, segment, bias, sums, ahead);
  sum_part<4>(part, segment, bias, sums, ahead);
}

// Four rows of four floats that lie `stride` apart, transposed.
void transpose4(const float* from, int64_t stride, float32x4_t (&to)[4]) {
  const float32x4x2_t even = vtrnq_f32(vld1q_f32(from), vld1q_f32(from + stride));
  const float32x4x2_t odd = vtrnq_f32(vld1q_f32(from + 2 * stride), vld1q_f32(from + 3 * stride));
  for (int i = 0; i < 2; ++i) {
    const float64x2_t top = vreinterpretq_f64_f32(even.val[i]);
    const float64x2_t bottom = vreinterpretq_f64_f32(odd.val[i]);
    to[i] = vreinterpretq_f32_f64(vzip1q_f64(top, bottom));
    to[i + 2] = vreinterpretq_f32_f64(vzip2q_f64(top, bottom));
  }
}

// Up to 4 samples times up to 4 columns of x; writes whole vectors of 4 samples.
void fill_block(const float* x, int64_t in_features, int64_t samples, int64_t columns, int width,
                float* to) {
  float32x4_t column[4];
  if (samples >= 4 && columns >= 4) {
    transpose4(x, in_features, column);
    for (int i = 0; i < 4; ++i) vst1q_f32(to + i * width, column[i]);
    return;
  }
  float corner[16] = {};
  for (int64_t s = 0; s < 4 && s < samples; ++s)
    for (int64_t c = 0; c < 4 && c < columns; ++c) corner[4 * s + c] = x[s * in_features + c];
  transpose4(corner, 4, column);
  for (int64_t i = 0; i < 4 && i < columns; ++i) vst1q_f32(to + i * width, column[i]);
}

// Columns that are transposed for all samples before the next ones: reads of a sample are
// sequential, and the panel is still in L1 when its next samples are written.
constexpr int64_t kFillColumns = 128;

void fill(const float* x, int64_t in_features, int samples, int64_t columns, int width,
          float* segment) {
  for (int s = 0; s < width; s += 4) vst1q_f32(segment + s, vdupq_n_f32(0.0f));
  segment += width;
  for (int64_t first = 0; first < columns; first += kFillColumns) {
    const int64_t last = columns - first < kFillColumns ? columns : first + kFillColumns;
    for (int s = 0; s < width; s += 4) {
      // Computes no address beyond the batch.
      const float* sample = s < samples ? x + s * in_features : x;
      for (int64_t c = first; c < last; c += 4)
        fill_block(sample + c, in_features, samples - s, columns - c, width,
                   segment + c * width + s);
    }
  }
}

// Up to 4 samples times up to 4 rows of sums.
void drain_block(const float* sums, int64_t rows, int width, int samples, const PanelOutput& output,
                 float* y, const float* residual) {
  const float32x4_t low = vdupq_n_f32(output.clip_min), high = vdupq_n_f32(output.clip_max);
  if (rows >= 4) {
    float32x4_t sample[4];
    transpose4(sums, width, sample);
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

constexpr PanelOps kPanel16Neon = {16, 8, 0.00012, fill, sum, drain};

}  // namespace fanin
