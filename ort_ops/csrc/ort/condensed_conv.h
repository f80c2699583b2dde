// The operator ai.fanin::CondensedConv, version 1 (docs/op.md). ops.h describes the members; all
// checks throw Error with a message for the user.
#pragma once

#include <cstdint>
#include <memory>

#include "core/condensed.h"
#include "core/conv.h"
#include "core/conv_geometry.h"
#include "core/gate.h"
#include "cuda/conv.h"
#include "ort/activations.h"
#include "ort/condensed_op.h"
#include "ort/conv_shape.h"
#include "ort/node_inputs.h"

namespace fanin::ort {

class CondensedConv : public ConvShape {
 public:
  static const OpSchema kSchema;
  static constexpr ActivationTypes kCpuTypes[] = {{kFloat, kFloat}, {kFloat16, kFloat16}};
  static constexpr ElementType kCudaTypes[] = {kFloat, kFloat16, kBfloat16};
  static constexpr LayerInputs kLayer = kFloatLayer;
  static constexpr size_t kResidualInput = kLayer.residual;
  static constexpr bool kWritesOverResidual = true;

  using Weights = WeightTensors;
  using View = CondensedView;

  explicit CondensedConv(const KernelInfo& info);

  DeclaredInputs check_declared(const Runtime& runtime, const KernelInfo& info,
                                ReadScalar read) const {
    return check_declared_inputs(runtime, info, *this, read);
  }
  CondensedView sound_view(const WeightTensors& weights) const;

  std::unique_ptr<PackedConv> pack(const CondensedView& view, const BatchRange&,
                                   const Executor& executor) const {
    return PackedConv::pack(view, geometry_, select_isa(), executor);
  }

  template <typename ValueOf>
  NoRunInputs run_inputs(const Runtime&, const ValueOf&) const {
    return {};
  }

  // Without a packed layer, the plain kernel runs on `view`.
  void run(const PackedConv* packed, const CondensedView& view, const RunSize& size, NoRunInputs,
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
                     void* stream, bool tf32) const {
    packed.run(arrays.x, size, arrays.y, {{arrays.residual, clip_.min, clip_.max}, gate_}, stream,
               tf32);
  }

 private:
  Gate gate_;
};

}  // namespace fanin::ort
