// NEON's table lookup reads 16 values from a table of 64 bytes in four registers and writes zero
// where the index is past its end, which makes padding free. x is split into four byte planes, so a
// window has 64 columns; zipping the planes gives exact float32.
#include <arm_neon.h>

#include "kernels/window_tables.h"

namespace fanin {
namespace {

constexpr int kRows =
    32;  // 64 would need more registers for sums and looked-up bytes than there are
constexpr int kColumns = 16;
constexpr int kBlockBytes = 64;  // four planes of 16 bytes
constexpr int kWindowBlocks = 4;

// Zipping keeps the order of the rows.
constexpr WindowGeometry geometry() {
  WindowGeometry geometry{kRows, kColumns, kColumns, kColumns, kWindowBlocks, kBlockBytes, 0xff,
                          {},    {},       {},       {}};
  for (int r = 0; r < kRows; ++r) geometry.lane_byte[r] = static_cast<uint8_t>(r);
  return geometry;
}

// Weights of the rows 16 h .. 16 h + 15 as four vectors.
struct Float32Weights {
  static constexpr ValueType kType = ValueType::kFloat32;
  static constexpr int kBytes = 4;
  static constexpr int lane(int row) { return row; }
  static void load(const uint8_t* weights, int h, float32x4_t (&to)[4]) {
    const float* from = reinterpret_cast<const float*>(weights) + 16 * h;
    for (int v = 0; v < 4; ++v) to[v] = vld1q_f32(from + 4 * v);
  }
};

// Widening is part of the base instruction set, arithmetic on float16 is not.
struct Float16Weights {
  static constexpr ValueType kType = ValueType::kFloat16;
  static constexpr int kBytes = 2;
  static constexpr int lane(int row) { return row; }
  static void load(const uint8_t* weights, int h, float32x4_t (&to)[4]) {
    const uint16_t* from = reinterpret_cast<const uint16_t*>(weights) + 16 * h;
    for (int v = 0; v < 4; v += 2) {
      const float16x8_t eight = vreinterpretq_f16_u16(vld1q_u16(from + 4 * v));
      to[v] = vcvt_f32_f16(vget_low_f16(eight));
      to[v + 1] = vcvt_high_f32_f16(eight);
    }
  }
};

struct Bfloat16Weights {
  static constexpr ValueType kType = ValueType::kBfloat16;
  static constexpr int kBytes = 2;
  static constexpr int lane(int row) { return row; }
  static void load(const uint8_t* weights, int h, float32x4_t (&to)[4]) {
    const uint16_t* from = reinterpret_cast<const uint16_t*>(weights) + 16 * h;
    for (int v = 0; v < 4; v += 2) {
      const uint16x8_t eight = vld1q_u16(from + 4 * v);
      to[v] = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(eight), 16));
      to[v + 1] = vreinterpretq_f32_u32(vshll_high_n_u16(eight, 16));
    }
  }
};

void split_block(const float* x, uint8_t* planes) {
  // A de-interleaving load: byte p of each of 16 floats goes to register p.
  const uint8x16x4_t by_place = vld4q_u8(reinterpret_cast<const uint8_t*>(x));
  for (int p = 0; p < 4; ++p) vst1q_u8(planes + 16 * p, by_place.val[p]);
}

void split(const float* x, int64_t in_features, int64_t blocks, uint8_t* planes) {
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t left = in_features - b * kColumns;
    const float* from = left > 0 ? x + b * kColumns : x;
    float tail[kColumns] = {};
    if (left < kColumns) {
      for (int64_t c = 0; c < left; ++c) tail[c] = from[c];
      from = tail;
    }
    split_block(from, planes + b * kBlockBytes);
  }
}

// A plane of the window's columns.
uint8x16x4_t table(const uint8_t* plane) {
  uint8x16x4_t table;
  for (int b = 0; b < kWindowBlocks; ++b) table.val[b] = vld1q_u8(plane + b * kBlockBytes);
  return table;
}

// One sample at a time: with the sums of two, registers would spill, which takes as many
// instructions as loading the step again for the second sample.
template <typename Weights>
void sum(const WindowSteps& steps, const uint8_t* planes, size_t, int, float* sums) {
  float32x4_t sum[2][4];
  for (int h = 0; h < 2; ++h)
    for (int v = 0; v < 4; ++v) sum[h][v] = vdupq_n_f32(0.0f);
  const uint8_t* step = steps.data;
  const uint8_t* window = planes;
  for (size_t i = 0; i < steps.count; ++i, step += kRows * (1 + Weights::kBytes)) {
    window += static_cast<size_t>(steps.advances[i]) * kBlockBytes;
    const uint8x16_t slots[2] = {vld1q_u8(step), vld1q_u8(step + 16)};
    // Plane by plane, so that one table in four registers serves all rows.
    uint8x16_t bytes[2][4];
#pragma GCC unroll 4
    for (int p = 0; p < 4; ++p) {
      const uint8x16x4_t plane = table(window + 16 * p);
      bytes[0][p] = vqtbl4q_u8(plane, slots[0]);
      bytes[1][p] = vqtbl4q_u8(plane, slots[1]);
    }
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const uint8x16x2_t low = vzipq_u8(bytes[h][0], bytes[h][1]);
      const uint8x16x2_t high = vzipq_u8(bytes[h][2], bytes[h][3]);
      float32x4_t weights[4];
      Weights::load(step + kRows, h, weights);
#pragma GCC unroll 2
      for (int e = 0; e < 2; ++e) {
        const uint16x8x2_t x =
            vzipq_u16(vreinterpretq_u16_u8(low.val[e]), vreinterpretq_u16_u8(high.val[e]));
        for (int i = 0; i < 2; ++i)
          sum[h][2 * e + i] =
              vfmaq_f32(sum[h][2 * e + i], vreinterpretq_f32_u16(x.val[i]), weights[2 * e + i]);
      }
    }
  }
  for (int h = 0; h < 2; ++h)
    for (int v = 0; v < 4; ++v) vst1q_f32(sums + 16 * h + 4 * v, sum[h][v]);
}

template <typename Weights>
constexpr WindowOps ops() {
  return {with_weights<Weights>(geometry()), split, sum<Weights>, 1};
}

}  // namespace

constexpr WindowOps kWindow64Neon[kFloatTypes] = {ops<Float32Weights>(), ops<Float16Weights>(),
                                                  ops<Bfloat16Weights>()};

}  // namespace fanin
