// The part of the window kernels that depends on the instruction set. Included by translation units
// of wider instruction sets: defines no function and includes no std template, so that nothing
// compiled for them can replace a common symbol.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/value_type.h"

namespace fanin {

// Columns of x have positions: of every `slots` positions, the first `columns` are columns and the
// others read zero. A window is a range of positions in which permutes look up; it moves by whole
// blocks. A step of the layout has one weight of each row of a group whose column is in the window:
//   [rows index bytes][rows weights of weight_type]
// An index byte is the position in the window; padding has that of a zero there.
struct WindowGeometry {
  int rows;     // of a group; one index byte and one weight each per step
  int columns;  // of `slots` positions
  int slots;
  int block_slots;  // positions that the window moves by at a time
  int window_blocks;
  int block_bytes;        // a block of x as `split` writes it
  uint8_t padding;        // index byte that reads zero, where no position does: slots == columns
  uint8_t lane_byte[64];  // where a step keeps the index byte of each row

  ValueType weight_type;
  int step_bytes;
  uint16_t weight_byte[64];  // where a step keeps the weight of each row

  constexpr int window_slots() const { return window_blocks * block_slots; }
};

namespace {

// Completes a geometry with weights that follow the index bytes of a step. Weights: kType, kBytes,
// lane(row). For constants only.
template <typename Weights>
constexpr WindowGeometry with_weights(WindowGeometry geometry) {
  geometry.weight_type = Weights::kType;
  geometry.step_bytes = geometry.rows * (1 + Weights::kBytes);
  for (int r = 0; r < geometry.rows; ++r)
    geometry.weight_byte[r] =
        static_cast<uint16_t>(geometry.rows + Weights::lane(r) * Weights::kBytes);
  return geometry;
}

}  // namespace

// The steps of one group of rows.
struct WindowSteps {
  const uint8_t* data;
  const uint16_t* advances;  // blocks that the window moves before each step
  size_t count;
};

struct WindowOps {
  WindowGeometry geometry;

  // x[in_features] to `blocks` blocks of planes (64-byte aligned).
  void (*split)(const float* x, int64_t in_features, int64_t blocks, uint8_t* planes);

  // sums[s * rows + r] for s < samples; the planes of sample s start at planes + s * stride.
  void (*sum)(const WindowSteps& steps, const uint8_t* planes, size_t stride, int samples,
              float* sums);
  int max_samples;  // that one call of `sum` takes, 8 at most
};

}  // namespace fanin
