#include <arm_neon.h>

#include "kernels/quantize_core.h"

namespace fanin {
namespace {

struct Vectors {
  static constexpr int kLanes = 4;
  using Floats = float32x4_t;
  using Flags = uint32x4_t;

  static Floats load(const float* from) { return vld1q_f32(from); }
  static Floats broadcast(float value) { return vdupq_n_f32(value); }
  static Floats min(Floats a, Floats b) { return vminq_f32(a, b); }
  static Floats max(Floats a, Floats b) { return vmaxq_f32(a, b); }
  static Floats multiply(Floats a, Floats b) { return vmulq_f32(a, b); }
  static Floats divide(Floats a, Floats b) { return vdivq_f32(a, b); }

  // Minimum and maximum are NaN where a number was.
  static Flags no_flags() { return vdupq_n_u32(0); }
  static Flags flag_nan(Flags flags, Floats, Floats) { return flags; }
  static bool flagged(Flags) { return false; }
  static float lowest(Floats a) { return vminvq_f32(a); }
  static float highest(Floats a) { return vmaxvq_f32(a); }

  static bool farthest_at_least(const Floats (&four)[4], float bound) {
    const auto distance = [](Floats a) { return vabdq_f32(a, vrndnq_f32(a)); };
    const Floats most =
        max(max(distance(four[0]), distance(four[1])), max(distance(four[2]), distance(four[3])));
    return vmaxvq_f32(most) >= bound;
  }

  static int16x8_t zero_points(float value) { return vdupq_n_s16(static_cast<int16_t>(value)); }
  static void store(const Floats (&four)[4], int16x8_t zero_points, uint8_t* to) {
    const auto narrowed = [zero_points](Floats a, Floats b) {
      const int16x8_t both =
          vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(a)), vqmovn_s32(vcvtnq_s32_f32(b)));
      return vqmovun_s16(vqaddq_s16(both, zero_points));
    };
    vst1q_u8(to, vcombine_u8(narrowed(four[0], four[1]), narrowed(four[2], four[3])));
  }
};

}  // namespace

constexpr QuantizeOps kQuantizeNeon = {range_of<Vectors>, quantize_numbers<Vectors>, 3e-4};

}  // namespace fanin
