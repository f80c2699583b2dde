// How launches of the expand kernel are cut into blocks.
#pragma once

#include <cstdint>
#include <string>

#include "core/conv_geometry.h"
#include "cuda/expand_conv_layout.h"
#include "cuda/expand_layout.h"
#include "cuda/plan.h"

namespace fanin::cuda {

struct ExpandPlan {
  int tile = 8;  // samples at a time, one of kExpandTiles or kPixelTiles
  int warps = 4;
  int parts = 1;
  int cluster = 1;
  int stages = ExpandShape::kLeastStages;
  bool vector_x = false;
  int64_t grid_x = 1;  // a multiple of the cluster
  int64_t grid_y = 1;
  int64_t shared_bytes = 0;
};

// Sizes of tiles of samples that there are instances for; of pixels.
inline constexpr int kExpandTiles[] = {8, 16, 32, 64, 128};
inline constexpr int kPixelTiles[] = {32, 64, 128};

// The parts of the columns, and so the order of a row's sum, do not depend on the batch.
ExpandPlan plan_expand(const ExpandLayout& layout, const RunArguments& run,
                       const DeviceLimits& limits);

// They do not depend on the number of images. The run's batch is that of the input.
ExpandPlan plan_expand_conv(const ExpandConvLayout& layout, const RunArguments& run,
                            const ConvInput& input, const DeviceLimits& limits);

// Why the kernel cannot compute images of that size, as a sentence; empty if it can.
std::string expand_input_problem(const ConvGeometry& geometry, const ConvInput& input);

ExpandArgs complete(ExpandArgs args, const RunArguments& run, const ExpandPlan& plan);
ExpandConvArgs complete(ExpandConvArgs args, const RunArguments& run, const ConvInput& input,
                        const ConvGeometry& geometry, const ExpandPlan& plan);

}  // namespace fanin::cuda
