// The reference of convolutions of int8 weights. Tests compare every other kernel with it.
#include "core/quantized_conv.h"
#include "kernels/quantized_finish.h"
#include "kernels/quantized_images.h"

namespace fanin {
namespace {

template <typename X>
void run(const CondensedView& view, const ConvGeometry& geometry, const QuantizedImages& images,
         void* y, const QuantizedEpilogue& epilogue) {
  const auto* x = static_cast<const X*>(images.data);
  const auto* values = static_cast<const int8_t*>(view.values);
  const ConvInput& size = images.size;
  const int64_t height = geometry.output_size(0, size.height);
  const int64_t width = geometry.output_size(1, size.width);
  const ImageStrides from =
      image_strides(geometry.in_channels, size.height, size.width, images.channels_last);
  const ImageStrides to = image_strides(geometry.out_channels, height, width, images.channels_last);
  const FinishBounds bounds = finish_bounds(epilogue);
  // A pixel less the zero point; 0 outside.
  const auto pixel = [&](int64_t n, int64_t channel, int64_t row, int64_t column) {
    const bool inside = row >= 0 && row < size.height && column >= 0 && column < size.width;
    return inside ? x[from.at(n, channel, row, column)] - images.zero_point : 0;
  };
  for (int64_t n = 0; n < size.batch; ++n) {
    int64_t stored = 0;
    for (int64_t o = 0; o < geometry.out_channels; ++o) {
      const bool active = stored < view.active && view.rows[stored] == o;
      const int64_t entries = active ? view.fan_in : 0;  // padding holds 0
      const int64_t first = o / geometry.group_outputs() * geometry.group_inputs();
      for (int64_t i = 0; i < height; ++i)
        for (int64_t j = 0; j < width; ++j) {
          int32_t sum = 0;
          for (int64_t entry = 0; entry < entries; ++entry) {
            const ConvTap tap = conv_tap(geometry, view.index(stored, entry));
            sum +=
                values[stored * view.fan_in + entry] *
                pixel(n, first + tap.channel, i * geometry.strides[0] - geometry.pads[0] + tap.row,
                      j * geometry.strides[1] - geometry.pads[1] + tap.column);
          }
          finish_at(epilogue, bounds, sum, epilogue.multipliers[o], o, to.at(n, o, i, j), y);
        }
      stored += active;
    }
  }
}

}  // namespace

void run_plain_quantized_conv(const CondensedView& view, const ConvGeometry& geometry,
                              const QuantizedImages& x, void* y,
                              const QuantizedEpilogue& epilogue) {
  if (x.type == QuantizedType::kInt8)
    run<int8_t>(view, geometry, x, y, epilogue);
  else
    run<uint8_t>(view, geometry, x, y, epilogue);
}

}  // namespace fanin
