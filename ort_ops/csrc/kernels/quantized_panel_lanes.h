// Some rows of a panel's sums. Like panel_core.h, only for translation units of one instruction
// set.
#pragma once

#include "kernels/quantized_panel_ops.h"

namespace fanin {
namespace {

// The same from lane `first` on, for up to kLanes of them.
template <int kLanes>
QuantizedFinish from_lane(const QuantizedFinish& finish, int first) {
  const int64_t element = finish.type == QuantizedType::kFloat32 ? sizeof(float) : 1;
  QuantizedFinish rest = finish;
  rest.lanes = finish.lanes - first < kLanes ? finish.lanes - first : kLanes;
  rest.y = static_cast<uint8_t*>(finish.y) + first * element;
  if (finish.residual)
    rest.residual = static_cast<const uint8_t*>(finish.residual) + first * element;
  rest.weight_sums += first;
  rest.multipliers += first;
  if (finish.bias) rest.bias += first;
  if (finish.float_bias) rest.float_bias += first;
  return rest;
}

}  // namespace
}  // namespace fanin
