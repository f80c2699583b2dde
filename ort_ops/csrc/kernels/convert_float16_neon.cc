#include <arm_neon.h>

#include "kernels/convert_float16.h"

namespace fanin {

int64_t widen_float16_neon(const uint16_t* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const float16x8_t eight = vreinterpretq_f16_u16(vld1q_u16(from + i));
    vst1q_f32(to + i, vcvt_f32_f16(vget_low_f16(eight)));
    vst1q_f32(to + i + 4, vcvt_high_f32_f16(eight));
  }
  return i;
}

int64_t narrow_float16_neon(const float* from, int64_t count, uint16_t* to) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const float16x4_t low = vcvt_f16_f32(vld1q_f32(from + i));
    vst1q_u16(to + i, vreinterpretq_u16_f16(vcvt_high_f16_f32(low, vld1q_f32(from + i + 4))));
  }
  return i;
}

}  // namespace fanin
