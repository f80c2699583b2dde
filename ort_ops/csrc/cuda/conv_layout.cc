#include "cuda/conv_layout.h"

#include <algorithm>
#include <cstring>

namespace fanin::cuda {

ConvLayout pack_conv(const CondensedView& view, const ConvGeometry& geometry, Blob& blob) {
  ConvLayout layout;
  layout.geometry = geometry;
  for (int64_t row = 0; row < view.active; ++row) layout.stored += view.true_fan_in(row);
  counted(layout.stored, "weights");
  for (const int axis : {0, 1})
    counted(geometry.dilations[axis] * (geometry.kernel[axis] - 1), "pixels under its window");
  layout.weights = blob.add(layout.stored * static_cast<int64_t>(sizeof(ConvWeight)));
  layout.ends = blob.add(view.out_features * static_cast<int64_t>(sizeof(int32_t)));
  layout.bias = blob.add(view.out_features * static_cast<int64_t>(sizeof(float)));

  auto* weights = blob.at<ConvWeight>(layout.weights);
  auto* ends = blob.at<int32_t>(layout.ends);
  int64_t at = 0, stored = 0;
  for (int64_t filter = 0; filter < view.out_features; ++filter) {
    if (stored < view.active && view.rows[stored] == filter) {
      const int64_t first = filter / geometry.group_outputs() * geometry.group_inputs();
      const int64_t entries = view.true_fan_in(stored);
      for (int64_t entry = 0; entry < entries; ++entry) {
        const ConvTap tap = conv_tap(geometry, view.index(stored, entry));
        weights[at++] = {static_cast<int32_t>(first + tap.channel), static_cast<int32_t>(tap.row),
                         static_cast<int32_t>(tap.column), view.value(stored, entry)};
      }
      ++stored;
    }
    ends[filter] = static_cast<int32_t>(at);
  }
  std::memcpy(blob.at<float>(layout.bias), view.bias,
              static_cast<size_t>(view.out_features) * sizeof(float));
  return layout;
}

ConvArgs ConvLayout::arguments(const void* base, const RunArguments& run,
                               const ConvInput& input) const {
  const auto* bytes = static_cast<const unsigned char*>(base);
  ConvArgs args;
  args.weights = reinterpret_cast<const ConvWeight*>(bytes + weights);
  args.ends = reinterpret_cast<const int32_t*>(bytes + ends);
  args.bias = reinterpret_cast<const float*>(bytes + bias);
  args.x = run.x;
  args.residual = run.residual;
  args.y = run.y;
  args.stored = stored;
  args.batch = input.batch;
  args.in_channels = geometry.in_channels;
  args.out_channels = geometry.out_channels;
  args.height = input.height;
  args.width = input.width;
  args.out_height = geometry.output_size(0, input.height);
  args.out_width = geometry.output_size(1, input.width);
  std::copy(geometry.strides, geometry.strides + 2, args.strides);
  std::copy(geometry.pads, geometry.pads + 2, args.pads);
  args.clip_min = run.clip_min;
  args.clip_max = run.clip_max;
  args.gated = !run.gate.open();
  args.gate_scale = run.gate.scale;
  args.gate_shift = run.gate.shift;
  return args;
}

ConvPlan plan_conv(const ConvArgs& args) {
  constexpr int64_t kMaxGridX = 0x7fffffff;
  ConvPlan plan;
  const int64_t pixels = args.batch * args.out_height * args.out_width;
  const int64_t pieces = (pixels + 31) / 32 * args.out_channels;
  plan.grid_x = std::clamp<int64_t>((pieces + plan.warps - 1) / plan.warps, 1, kMaxGridX);
  return plan;
}

}  // namespace fanin::cuda
