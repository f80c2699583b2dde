// The reference: sums in the order of the stored entries. Tests compare every other kernel with it.
#include "core/conv.h"

namespace fanin {
namespace {

// One pixel of an image of the group's first channel; 0 outside.
float pixel(const float* image, const ConvInput& input, int64_t channel, int64_t row,
            int64_t column) {
  if (row < 0 || row >= input.height || column < 0 || column >= input.width) return 0.0f;
  return image[(channel * input.height + row) * input.width + column];
}

}  // namespace

void run_plain_conv(const CondensedView& view, const ConvGeometry& geometry, const float* x,
                    const ConvInput& input, float* y, const ConvEpilogue& epilogue) {
  const int64_t height = geometry.output_size(0, input.height);
  const int64_t width = geometry.output_size(1, input.width);
  const int64_t channel_size = input.height * input.width;
  int64_t at = 0;
  for (int64_t n = 0; n < input.batch; ++n) {
    int64_t stored = 0;
    for (int64_t o = 0; o < geometry.out_channels; ++o) {
      const bool active = stored < view.active && view.rows[stored] == o;
      const int64_t entries = active ? view.true_fan_in(stored) : 0;
      const int64_t group = o / geometry.group_outputs();
      const float* image =
          x + (n * geometry.in_channels + group * geometry.group_inputs()) * channel_size;
      for (int64_t i = 0; i < height; ++i)
        for (int64_t j = 0; j < width; ++j, ++at) {
          float sum = view.bias[o];
          for (int64_t entry = 0; entry < entries; ++entry) {
            const ConvTap tap = conv_tap(geometry, view.index(stored, entry));
            sum += view.value(stored, entry) *
                   pixel(image, input, tap.channel,
                         i * geometry.strides[0] - geometry.pads[0] + tap.row,
                         j * geometry.strides[1] - geometry.pads[1] + tap.column);
          }
          if (epilogue.residual) sum += epilogue.residual[at];
          y[at] = epilogue.apply(sum);
        }
      stored += active;
    }
  }
}

}  // namespace fanin
