// The operator ai.fanin::CondensedConv, version 1 (docs/op.md). ops.h describes the members; all
// checks throw Error with a message for the user.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/condensed.h"
#include "core/conv.h"
#include "core/conv_geometry.h"
#include "core/gate.h"
#include "cuda/conv.h"
#include "ort/activations.h"
#include "ort/condensed_op.h"
#include "ort/node_inputs.h"

namespace fanin::ort {

class CondensedConv {
 public:
  static const OpSchema kSchema;
  static constexpr ElementType kCpuTypes[] = {kFloat, kFloat16};
  static constexpr ElementType kCudaTypes[] = {kFloat, kFloat16, kBfloat16};
  static constexpr size_t kResidualInput = kResidual;
  static constexpr bool kWritesOverResidual = true;

  using Weights = WeightTensors;
  using View = CondensedView;
  using RunSize = ConvInput;

  // Refuses attributes that are missing, of the wrong type or length, out of range, or that
  // contradict one another.
  explicit CondensedConv(const KernelInfo& info);

  WeightSizes sizes() const {
    return {geometry_.group_inputs() * geometry_.taps(), geometry_.out_channels, "out_channels"};
  }
  DeclaredInputs check_declared(const Runtime& runtime, const KernelInfo& info,
                                ReadScalar read) const {
    return check_declared_inputs(runtime, info, *this, read);
  }
  CondensedView sound_view(const WeightTensors& weights) const;

  // Refuses X unless it is [N, in_channels, H, W], or [N, in_channels, L] with one axis, and the
  // kernel fits into it, as far as its sizes are known.
  void check_x(const Shape& x) const;

  RunSize run_size(const Shape& x) const { return {x[0], axes_ == 2 ? x[2] : 1, x.back()}; }

  // One packed layer serves every batch.
  BatchRange batches(const Shape&) const { return {}; }

  // [N, out_channels, ...], -1 where unknown.
  std::vector<int64_t> output_dims(const Shape& x) const;

  std::unique_ptr<PackedConv> pack(const CondensedView& view, const BatchRange&,
                                   const Executor& executor) const {
    return PackedConv::pack(view, geometry_, select_isa(), executor);
  }

  // Without a packed layer, the plain kernel runs on `view`.
  void run(const PackedConv* packed, const CondensedView& view, const RunSize& size,
           const Activations& arrays, const Executor& executor) const {
    const int64_t pixels =
        geometry_.output_size(0, size.height) * geometry_.output_size(1, size.width);
    run_in_float32(arrays, size.batch, geometry_.in_channels * size.height * size.width,
                   geometry_.out_channels * pixels, executor, [&](const Float32Slice& slice) {
                     const ConvEpilogue epilogue{{slice.residual, clip_.min, clip_.max}, gate_};
                     const ConvInput part{slice.batch, size.height, size.width};
                     if (packed)
                       packed->run(slice.x, part, slice.y, epilogue, executor);
                     else
                       run_plain_conv(view, geometry_, slice.x, part, slice.y, epilogue);
                   });
  }

  std::unique_ptr<cuda::PackedConv> pack_on_device(const CondensedView& view, const BatchRange&,
                                                   ValueType activations, int device) const {
    return cuda::PackedConv::pack(view, geometry_, activations, device);
  }

  void run_on_device(const cuda::PackedConv& packed, const RunSize& size, const Activations& arrays,
                     void* stream) const {
    packed.run(arrays.x, size, arrays.y, {{arrays.residual, clip_.min, clip_.max}, gate_}, stream);
  }

 private:
  void check_length(const Shape& x, size_t axis, int64_t length) const;

  ConvGeometry geometry_;
  size_t axes_;  // spatial ones: 1 or 2; with one, the geometry's height is 1
  Clip clip_;
  Gate gate_;
};

}  // namespace fanin::ort
