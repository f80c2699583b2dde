#include "cuda/expand_conv_layout.h"

#include <vector>

namespace fanin::cuda {

ExpandConvLayout pack_expand_conv(const CondensedView& view, const ConvGeometry& geometry,
                                  ValueType activations, Blob& blob) {
  ExpandConvLayout layout;
  layout.geometry = geometry;
  layout.tiles = pack_expand(view, activations, geometry.group, blob);
  std::vector<ConvColumn> columns;
  for (int64_t index = 0; index < view.in_features; ++index) {
    const ConvTap tap = conv_tap(geometry, index);
    columns.push_back({static_cast<int32_t>(tap.channel), static_cast<int32_t>(tap.row),
                       static_cast<int32_t>(tap.column), 0});
  }
  layout.columns = append(columns, blob);
  return layout;
}

ExpandConvArgs ExpandConvLayout::arguments(const void* base) const {
  ExpandConvArgs args{};
  static_cast<ExpandArgs&>(args) = tiles.arguments(base);
  args.columns =
      reinterpret_cast<const ConvColumn*>(static_cast<const unsigned char*>(base) + columns);
  args.in_channels = static_cast<int32_t>(geometry.in_channels);
  for (const int axis : {0, 1}) {
    args.strides[axis] = static_cast<int32_t>(geometry.strides[axis]);
    args.pads[axis] = static_cast<int32_t>(geometry.pads[axis]);
  }
  return args;
}

}  // namespace fanin::cuda
