// Some rows of a panel's sums. Like panel_core.h, only for translation units of one instruction
// set.
#pragma once

#include "kernels/quantized_panel_ops.h"

namespace fanin {
namespace {

// Rows that are finished together: bytes of a whole line, for some samples after each other, so
// that no half-written line leaves L1.
constexpr int kFinishedRows = 64;

// What becomes of kFinishedRows rows or fewer from number `lane` on, in some samples.
inline QuantizedFinish part_of(const QuantizedFinish& all, int lane, int sample, int samples) {
  const int64_t element = all.type == QuantizedType::kFloat32 ? sizeof(float) : 1;
  const int64_t at = (sample * all.stride + lane) * element;
  QuantizedFinish part = all;
  part.samples = all.samples - sample < samples ? all.samples - sample : samples;
  part.lanes = all.lanes - lane < kFinishedRows ? all.lanes - lane : kFinishedRows;
  part.y = static_cast<uint8_t*>(all.y) + at;
  if (all.residual) part.residual = static_cast<const uint8_t*>(all.residual) + at;
  part.weight_sums += lane;
  part.multipliers += lane;
  if (all.bias) part.bias += lane;
  if (all.float_bias) part.float_bias += lane;
  if (all.sample_multipliers) part.sample_multipliers += sample;
  part.zero_points += sample;
  return part;
}

}  // namespace
}  // namespace fanin
