// The operator ai.fanin::CondensedGemm, version 1 (docs/op.md). ops.h describes the members; all
// checks throw Error with a message for the user.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/condensed.h"
#include "core/gemm.h"
#include "cuda/gemm.h"
#include "ort/activations.h"
#include "ort/condensed_op.h"
#include "ort/node_inputs.h"

namespace fanin::ort {

class CondensedGemm {
 public:
  static const OpSchema kSchema;
  static constexpr ElementType kCpuTypes[] = {kFloat, kFloat16};
  static constexpr ElementType kCudaTypes[] = {kFloat, kFloat16, kBfloat16};
  static constexpr size_t kResidualInput = kResidual;
  static constexpr bool kWritesOverResidual = false;

  using Weights = WeightTensors;
  using View = CondensedView;
  struct RunSize {
    int64_t batch;
  };

  explicit CondensedGemm(const KernelInfo& info);

  WeightSizes sizes() const { return {in_features_, out_features_, "out_features"}; }
  DeclaredInputs check_declared(const Runtime& runtime, const KernelInfo& info,
                                ReadScalar read) const {
    return check_declared_inputs(runtime, info, *this, read);
  }
  CondensedView sound_view(const WeightTensors& weights) const;

  // Refuses X unless it is [..., in_features] with at least one dimension.
  void check_x(const Shape& x) const;

  // The product of all dimensions of X except the last. Refuses an overflow.
  RunSize run_size(const Shape& x) const;

  // The batches that fit a declared shape: symbolic dimensions are at least 1 (an empty batch needs
  // no kernel).
  BatchRange batches(const Shape& x) const;

  // [..., out_features]; empty if the rank of X is unknown.
  std::vector<int64_t> output_dims(const Shape& x) const;

  std::unique_ptr<PackedGemm> pack(const CondensedView& view, const BatchRange& batches,
                                   const Executor& executor) const {
    return PackedGemm::pack(view, batches, select_isa(), executor);
  }

  // Without a packed layer, the plain kernel runs on `view`.
  void run(const PackedGemm* packed, const CondensedView& view, const RunSize& size,
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
    return cuda::PackedGemm::pack(view, batches, activations, device);
  }

  void run_on_device(const cuda::PackedGemm& packed, const RunSize& size, const Activations& arrays,
                     void* stream) const {
    packed.run(arrays.x, size.batch, arrays.y, {arrays.residual, clip_.min, clip_.max}, stream);
  }

 private:
  int64_t in_features_;
  int64_t out_features_;
  Clip clip_;
};

}  // namespace fanin::ort
