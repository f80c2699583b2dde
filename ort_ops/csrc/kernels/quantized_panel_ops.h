// The part of the panel kernels of int8 layers that depends on the instruction set, as panel_ops.h.
#pragma once

#include "kernels/panel_ops.h"
#include "kernels/quantized_finish_ops.h"

namespace fanin {

// Columns of a segment of floats: their products with int8 weights are integers below 2^24, and so
// are all sums of them (512 * 255 * 128), so float32 adds them exactly.
constexpr int kExactColumns = 512;

// Samples of the widest tile of any of these kernels.
constexpr int kPanelMaxSamples = 64;

struct QuantizedPanelOps {
  // Whether a column of the panel is a quad, four bytes of x for a dot product of bytes; else it is
  // one column of x as floats, and sums of a segment are converted to int32.
  bool quads;
  QuantizedType x_type;  // of x in the panel: kUint8 or kInt8

  int max_width;  // samples of the widest tile; the others are its halves down to min_width
  int min_width;

  double microseconds_per_weight;  // for an entry of the layout and a sample of the widest tile

  // Transposes `columns` bytes of each sample to a segment, [1 + panel columns][width], that begins
  // with a column of zeros. x is any memory, with `stride` bytes from one sample to the next.
  // Missing samples repeat the last one. `flip` is combined with each byte by exclusive or.
  void (*fill)(const uint8_t* x, int64_t stride, int samples, int64_t columns, int width,
               uint8_t flip, float* segment);

  PanelSum* sum;

  // Finishes the sums of finish.lanes rows, int32 [lanes][width].
  void (*drain)(const float* sums, int width, const QuantizedFinish& finish);
};

}  // namespace fanin
