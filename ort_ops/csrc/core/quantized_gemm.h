// A condensed layer of int8 weights, packed once and run many times with quantized activations.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/condensed.h"
#include "core/cpu_features.h"
#include "core/executor.h"
#include "core/gemm.h"
#include "core/work_plan.h"

namespace fanin {

// The largest fan-in whose sums of products fit int32: 65793 * 255 * 128 < 2^31.
inline constexpr int64_t kMaxQuantizedFanIn = 65793;

// Why the view is no valid layer of int8 weights, as `validate` says it; empty if it is one.
std::string validate_quantized(const CondensedView& view);

struct QuantizedInput {
  const void* data = nullptr;                  // [batch, in_features]
  QuantizedType type = QuantizedType::kUint8;  // or kInt8
  int32_t zero_point = 0;                      // a value of the type
  const int32_t* zero_points = nullptr;        // [batch], instead of a common one; or null
};

// What becomes of the sum of output o in sample b. Each operation is rounded to float32 on its own:
//   sum   = bias[o] + sum_j values[i, j] * (x[b, indices[i, j]] - zero point)    int32, wraps
//   value = sum * multipliers[o]    or  sum * (sample_multipliers[b] * multipliers[o])
//   value = value + float_bias[o]
//   value = value + residual[b, o]  or  value + (residual[b, o] - residual_zero_point)
//                                               * residual_multiplier
//   value = clip(value)
//   y     = value                   or  saturate(round_half_even(value) + zero_point)
// The second forms of the last two are those of uint8 and int8. Multipliers are finite and positive
// unless y is float32, where a NaN makes every output of its sample NaN.
struct QuantizedEpilogue {
  QuantizedType type = QuantizedType::kFloat32;  // of y and residual
  const float* multipliers = nullptr;            // [out_features]
  const float* sample_multipliers = nullptr;     // [batch], or null
  const int32_t* bias = nullptr;                 // [out_features], or null for zeros
  const float* float_bias = nullptr;             // [out_features], or null for none
  const void* residual = nullptr;                // [batch, out_features], or null for none
  float residual_multiplier = 1.0f;
  int32_t residual_zero_point = 0;
  float clip_min = -std::numeric_limits<float>::infinity();
  float clip_max = std::numeric_limits<float>::infinity();
  int32_t zero_point = 0;  // of y, a value of its type
};

class PackedQuantizedGemm {
 public:
  virtual ~PackedQuantizedGemm() = default;

  // As PackedGemm::pack, for a view that validate_quantized accepts. Scales, zero points and biases
  // come with each run, so layers that differ only in these share packed copies.
  static std::unique_ptr<PackedQuantizedGemm> pack(const CondensedView& view, BatchRange batches,
                                                   Isa isa, const Executor& executor);

  // As PackedGemm::pack_kernel, with a row of quantized_kernel_table().
  static std::unique_ptr<PackedQuantizedGemm> pack_kernel(const CondensedView& view,
                                                          BatchRange batches,
                                                          const std::string& kernel,
                                                          const Executor& executor);

  // y is [batch, out_features] of epilogue.type; arrays are dense and without alignment, and y does
  // not overlap x. It may be the residual. The result is bitwise equal for any kernel and any
  // number of threads.
  virtual void run(const QuantizedInput& x, int64_t batch, void* y,
                   const QuantizedEpilogue& epilogue, const Executor& executor) const = 0;

  // How run() shares a batch (at least 1) among `threads` threads.
  virtual WorkPlan plan(int64_t batch, size_t threads, const DispatchCost& dispatch) const = 0;

  virtual std::vector<PackedInfo> info() const = 0;

  // The name of the kernel that runs a batch.
  virtual std::string kernel(int64_t batch) const = 0;

  // Whether packing `view` would give this object, see LayerKernel::holds.
  virtual bool holds(const CondensedView& view) const = 0;
};

// The scalar reference, without packing, as run_plain.
void run_plain_quantized(const CondensedView& view, const QuantizedInput& x, int64_t batch, void* y,
                         const QuantizedEpilogue& epilogue);

}  // namespace fanin
