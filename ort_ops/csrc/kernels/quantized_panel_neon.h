// Filling and draining panels of int8 layers with NEON, as quantized_panel_core.h.
#pragma once

#include "kernels/panel_neon_core.h"
#include "kernels/panel_transpose4.h"
#include "kernels/quantized_finish_neon.h"
#include "kernels/quantized_panel_lanes.h"

namespace fanin {
namespace {

// Four columns of x in a column of the panel.
struct PutQuads : PutFloats {
  uint8x16_t flip;

  PutQuads(float* to, int samples, uint8_t bits) : PutFloats{to, samples}, flip(vdupq_n_u8(bits)) {}

  void operator()(int64_t column, int s, float32x4_t samples) const {
    const uint8x16_t quads = veorq_u8(vreinterpretq_u8_f32(samples), flip);
    vst1q_f32(at(column, s), vreinterpretq_f32_u8(quads));
  }
};

// Four columns of x in four columns of the panel, as floats.
struct PutWidened : PutQuads {
  using PutQuads::PutQuads;

  void operator()(int64_t column, int s, float32x4_t samples) const {
    uint32x4_t quads = vreinterpretq_u32_u8(veorq_u8(vreinterpretq_u8_f32(samples), flip));
    for (int i = 0; i < 4; ++i) {
      vst1q_f32(at(4 * column + i, s), vcvtq_f32_u32(vandq_u32(quads, vdupq_n_u32(0xff))));
      quads = vshrq_n_u32(quads, 8);
    }
  }
};

template <typename Put>
void fill_bytes4(const uint8_t* x, int64_t stride, int samples, int64_t columns, int width,
                 uint8_t flip, float* segment) {
  fill_zeros4(segment, width);
  fill4(x, stride, samples, columns, width, Put(segment, width, flip));
}

// Transposes the sums of some rows to [samples][kFinishedRows] and finishes them.
void drain4(const float* sums, int width, const QuantizedFinish& all) {
  alignas(64) float block[4 * kFinishedRows];
  for (int lane = 0; lane < all.lanes; lane += kFinishedRows)
    for (int s = 0; s < all.samples; s += 4) {
      const QuantizedFinish part = part_of(all, lane, s, 4);
      for (int r = 0; r < part.lanes; r += 4) {
        const float* from = sums + (lane + r) * width + s;
        float32x4_t sample[4];
        transpose4(RowPointers(from, int64_t{4} * width, part.lanes - r), 0, sample);
        for (int i = 0; i < 4; ++i) vst1q_f32(block + i * kFinishedRows + r, sample[i]);
      }
      finish<kFinishedRows>(part, reinterpret_cast<const int32_t*>(block));
    }
}

}  // namespace
}  // namespace fanin
