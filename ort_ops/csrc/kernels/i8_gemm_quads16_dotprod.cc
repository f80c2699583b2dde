// Dot products of bytes for Arm64, of signed ones: x as uint8 is read as x - 128.
#include "kernels/quantized_panel_neon.h"
#include "kernels/quantized_panel_tables.h"

namespace fanin {
namespace {

struct Quads {
  using Type = int32x4_t;
  using Four = int8x16_t;  // the weights of four rows
  static constexpr int kLanes = 4;
  static Type load(const float* from) { return vld1q_s32(reinterpret_cast<const int32_t*>(from)); }
  static void store(float* to, Type value) { vst1q_s32(reinterpret_cast<int32_t*>(to), value); }
  static Type broadcast(const float* from) {
    return vld1q_dup_s32(reinterpret_cast<const int32_t*>(from));
  }
  static Four load4(const float* from) { return vld1q_s8(reinterpret_cast<const int8_t*>(from)); }
  template <int kRow>
  static Type multiply_add(Type sum, const float* x, Four weights) {
    return vdotq_laneq_s32(sum, load4(x), weights, kRow);
  }
};

void sum(const PanelPart& part, const float* segment, const float* bias, int width, float* sums,
         PanelAhead& ahead) {
  if (width == 8) return sum_part<Quads, 2>(part, segment, bias, sums, ahead);
  sum_part<Quads, 4>(part, segment, bias, sums, ahead);
}

}  // namespace

constexpr QuantizedPanelOps kQuantizedQuads16Dotprod = {true,   QuantizedType::kInt8,  16,  8,
                                                        0.0001, fill_bytes4<PutQuads>, sum, drain4};

}  // namespace fanin
