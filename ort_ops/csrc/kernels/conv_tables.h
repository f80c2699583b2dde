// The convolution kernels of this build, one per instruction set.
#pragma once

#include "kernels/conv_lane_ops.h"
#include "kernels/conv_ops.h"
#include "kernels/conv_plane_ops.h"

namespace fanin {

extern const ConvOps kConvPanel16Avx2;
extern const ConvOps kConvPanel32Avx512f;
extern const ConvOps kConvPanel16Neon;

extern const ConvLaneOps kConvLanes16Avx512f;
extern const ConvLaneOps kConvLanes4Neon;
extern const ConvLaneOps kConvLanes8Avx2;

extern const ConvPlaneOps kConvPlanesAvx2;
extern const ConvPlaneOps kConvPlanesAvx512f;
extern const ConvPlaneOps kConvPlanesNeon;

}  // namespace fanin
