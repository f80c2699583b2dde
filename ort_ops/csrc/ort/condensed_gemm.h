// The operator ai.fanin::CondensedGemm, version 1 (docs/op.md). ops.h describes the members; all
// checks throw Error with a message for the user.
#pragma once

#include <cstdint>
#include <memory>

#include "core/condensed.h"
#include "core/gemm.h"
#include "cuda/gemm.h"
#include "ort/activations.h"
#include "ort/condensed_op.h"
#include "ort/gemm_shape.h"
#include "ort/node_inputs.h"

namespace fanin::ort {

class CondensedGemm : public GemmShape {
 public:
  static const OpSchema kSchema;
  static constexpr ActivationTypes kCpuTypes[] = {{kFloat, kFloat}, {kFloat16, kFloat16}};
  static constexpr ElementType kCudaTypes[] = {kFloat, kFloat16, kBfloat16};
  static constexpr LayerInputs kLayer = kFloatLayer;
  static constexpr size_t kResidualInput = kLayer.residual;
  static constexpr bool kWritesOverResidual = false;

  using Weights = WeightTensors;
  using View = CondensedView;

  // Reads the attribute compute beside those of GemmShape.
  explicit CondensedGemm(const KernelInfo& info);

  DeclaredInputs check_declared(const Runtime& runtime, const KernelInfo& info,
                                ReadScalar read) const {
    return check_declared_inputs(runtime, info, *this, read);
  }
  CondensedView sound_view(const WeightTensors& weights) const;

  std::unique_ptr<PackedGemm> pack(const CondensedView& view, const BatchRange& batches,
                                   const Executor& executor) const {
    return PackedGemm::pack(view, batches, select_isa(), executor);
  }

  template <typename ValueOf>
  NoRunInputs run_inputs(const Runtime&, const ValueOf&) const {
    return {};
  }

  // Without a packed layer, the plain kernel runs on `view`.
  void run(const PackedGemm* packed, const CondensedView& view, const RunSize& size, NoRunInputs,
           const Activations& arrays, const Executor& executor) const {
    run_in_float32(arrays, size.batch, in_features_, out_features_, executor,
                   [&](const Float32Slice& slice) {
                     const Epilogue epilogue{slice.residual, clip_.min, clip_.max};
                     if (packed)
                       packed->run(slice.x, slice.batch, slice.y, epilogue, executor);
                     else
                       run_plain(view, slice.x, slice.batch, slice.y, epilogue);
                   });
  }

  std::unique_ptr<cuda::PackedGemm> pack_on_device(const CondensedView& view,
                                                   const BatchRange& batches, ValueType activations,
                                                   int device) const {
    refuse_compute_on_device(activations);
    return cuda::PackedGemm::pack(view, batches, activations, device);
  }

  void run_on_device(const cuda::PackedGemm& packed, const RunSize& size, const Activations& arrays,
                     void* stream, bool tf32) const {
    packed.run(arrays.x, size.batch, arrays.y, {arrays.residual, clip_.min, clip_.max}, stream,
               tf32);
  }

 private:
  // CUDA kernels do not round X.
  void refuse_compute_on_device(ValueType activations) const;

  ValueType compute_;
};

}  // namespace fanin::ort
