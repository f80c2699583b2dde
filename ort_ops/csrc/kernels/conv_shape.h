// How wide the tiles of a convolution are and how long the segments of its panel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "core/conv_geometry.h"
#include "kernels/conv_ops.h"
#include "kernels/panel_ops.h"

namespace fanin {

struct ConvShape {
  int width;                // of the widest tile, in pixels
  int64_t segment_columns;  // of the panel
};

inline ConvShape choose_shape(const CondensedView& view, const ConvGeometry& geometry,
                              const ConvInput& expected, const ConvOps& ops) {
  (void)geometry;
  (void)expected;
  int width = std::min(ops.max_width, 32);
  double steps = 20;
  int64_t least = 192, most = 1280;
  if (const char* e = getenv("CW")) width = std::min(ops.max_width, atoi(e));
  if (const char* e = getenv("CS")) steps = atof(e);
  if (const char* e = getenv("CMIN")) least = atoi(e);
  if (const char* e = getenv("CMAX")) most = atoi(e);
  const double density =
      std::max<double>(1, static_cast<double>(view.fan_in)) / static_cast<double>(view.in_features);
  return {width, std::clamp(static_cast<int64_t>(steps / density), least, most)};
}

}  // namespace fanin
