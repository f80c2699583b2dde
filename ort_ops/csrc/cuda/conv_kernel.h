// Direct convolution: a thread program in which a lane computes one pixel of one filter.
//
// The lanes of a warp compute neighboring pixels of one filter, so their reads of x lie side by
// side and each weight is one read for the whole warp; the warps of a block compute the next
// filters for the same pixels, whose x is in L1 by then. Sums run over the stored weights in their
// order.
#pragma once

#include <cstdint>

#include "cuda/types.h"

namespace fanin::cuda {

// A weight and the position that it reads: channel of X, and row and column from the window's
// corner.
struct alignas(16) ConvWeight {
  int32_t channel;
  int32_t row;
  int32_t column;
  float value;
};

struct ConvArgs {
  const ConvWeight* weights;  // of filter o: from ends[o - 1] to ends[o]
  const int32_t* ends;        // [out_channels]
  const float* bias;          // [out_channels]
  const void* x;              // [batch, in_channels, height, width]
  const void* residual;       // [batch, out_channels, out_height, out_width] or null
  void* y;                    // likewise
  int64_t stored;             // weights
  int64_t batch;
  int64_t in_channels;
  int64_t out_channels;
  int64_t height;
  int64_t width;
  int64_t out_height;
  int64_t out_width;
  int64_t strides[2];
  int64_t pads[2];  // top, left
  float clip_min;
  float clip_max;
  bool gated;  // by what follows, see Gate
  float gate_scale;
  float gate_shift;

  FANIN_INLINE int64_t outputs() const { return batch * out_channels * out_height * out_width; }
};

template <typename X>
class ConvKernel {
 public:
  static constexpr int kMaxThreads = 128;
  static constexpr int kMinBlocks = 8;
  static constexpr int kLanes = 32;

  template <typename Context>
  static FANIN_INLINE void run(const Context& context, const ConvArgs& args) {
    const int64_t out_pixels = args.out_height * args.out_width;
    const int64_t pixels = args.batch * out_pixels;
    const int64_t pieces = (pixels + kLanes - 1) / kLanes * args.out_channels;
    const int warps = context.threads() / kLanes;
    const int64_t step = context.grid_x() * warps;
    for (int64_t piece = context.block_x() * warps + context.thread() / kLanes; piece < pieces;
         piece += step) {
      const int64_t filter = piece % args.out_channels;
      const int64_t pixel = piece / args.out_channels * kLanes + context.thread() % kLanes;
      if (pixel >= pixels) continue;
      compute(context, args, filter, pixel / out_pixels, pixel % out_pixels);
    }
  }

 private:
  template <typename Context>
  static FANIN_INLINE void compute(const Context& context, const ConvArgs& args, int64_t filter,
                                   int64_t sample, int64_t pixel) {
    const auto weights = context.template global<ConvWeight>(args.weights, args.stored);
    const auto ends = context.template global<int32_t>(args.ends, args.out_channels);
    const int64_t channel_size = args.height * args.width;
    const auto x = context.template global<X>(args.x, args.batch * args.in_channels * channel_size);
    const int64_t image = sample * args.in_channels * channel_size;
    const int64_t top = pixel / args.out_width * args.strides[0] - args.pads[0];
    const int64_t left = pixel % args.out_width * args.strides[1] - args.pads[1];

    float sum = context.template global<float>(args.bias, args.out_channels)[filter];
    const int32_t end = ends[filter];
    for (int32_t at = filter > 0 ? ends[filter - 1] : 0; at < end; ++at) {
      const ConvWeight weight = weights[at];
      const int64_t row = top + weight.row, column = left + weight.column;
      // Zeros around the image are multiplied with the weights like pixels.
      float value = 0.0f;
      if (row >= 0 && row < args.height && column >= 0 && column < args.width)
        value = widen(x[image + weight.channel * channel_size + row * args.width + column]);
      sum = context.fma(weight.value, value, sum);
    }
    const int64_t out_pixels = args.out_height * args.out_width;
    const int64_t at = (sample * args.out_channels + filter) * out_pixels + pixel;
    if (args.residual) sum += widen(context.template global<X>(args.residual, args.outputs())[at]);
    sum = clipped(sum, args.clip_min, args.clip_max);
    if (args.gated) sum *= clipped(context.fma(sum, args.gate_scale, args.gate_shift), 0.0f, 1.0f);
    context.template output<X>(args.y, args.outputs()).store(at, narrow<X>(sum));
  }
};

}  // namespace fanin::cuda
