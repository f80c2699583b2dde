#include "ort/condensed_gemm_inputs.h"

#include <algorithm>

namespace fanin::ort {
namespace {

// The batch sizes that fit a declared shape: symbolic dimensions are at least 1 (an empty batch
// needs no kernel).
BatchRange batches_of(const Shape& x) {
  if (x.rank == 0) return {};
  bool symbolic = false;
  int64_t known = 1;
  for (size_t axis = 0; axis + 1 < x.rank; ++axis) {
    if (x[axis] < 0) {
      symbolic = true;
    } else if (__builtin_mul_overflow(known, std::max<int64_t>(x[axis], 1), &known)) {
      return {};
    }
  }
  return symbolic ? BatchRange{known, BatchRange{}.max} : BatchRange{known, known};
}

}  // namespace

GemmAttributes read_gemm_attributes(const KernelInfo& info) {
  GemmAttributes attributes;
  attributes.in_features = size_attribute(info, "in_features");
  attributes.out_features = size_attribute(info, "out_features");
  attributes.clip = read_clip(info);
  return attributes;
}

DeclaredGemm check_declared(const Runtime& runtime, const KernelInfo& info,
                            const GemmAttributes& attributes, ReadScalar read) {
  const DeclaredInputs declared = check_declared_weights(info, attributes.sizes());
  DeclaredGemm gemm{{}, declared.variable_weights};
  const Shape x = declared.shape(kX);
  if (x.rank > 0) {
    check_x(x, attributes);
    gemm.batches = batches_of(x);
    check_declared_residual(runtime, info, declared.shape(kResidual), output_dims(x, attributes),
                            read);
  }
  return gemm;
}

void check_x(const Shape& x, const GemmAttributes& attributes) {
  if (x.rank == 0) refuse("X is a scalar, it must be [..., in_features]");
  if (!agree(x.back(), attributes.in_features)) {
    refuse("X has shape " + to_string(x) + ", its last dimension must be in_features, which is " +
           std::to_string(attributes.in_features));
  }
}

int64_t batch_of(const Shape& x) {
  const int64_t* end = x.dims + x.rank - 1;
  if (std::find(x.dims, end, 0) != end) return 0;
  int64_t batch = 1;
  for (const int64_t* dim = x.dims; dim != end; ++dim) {
    if (__builtin_mul_overflow(batch, *dim, &batch))
      refuse("X has shape " + to_string(x) + ", which is too large");
  }
  return batch;
}

std::vector<int64_t> output_dims(const Shape& x, const GemmAttributes& attributes) {
  std::vector<int64_t> dims(x.dims, x.dims + x.rank);
  dims.back() = attributes.out_features;
  return dims;
}

void check_batch(int64_t batch, const BatchRange& packed, const Shape& x) {
  if (batch >= packed.min && batch <= packed.max) return;
  refuse("X has shape " + to_string(x) +
         ", which contradicts the shape that the model declares for it; correct the model's "
         "shapes, or make the dimension symbolic");
}

CondensedView sound_view(const WeightTensors& weights, const GemmAttributes& attributes) {
  const CondensedView view = weights.view(attributes.sizes());
  refuse_unless_empty(validate(view));
  return view;
}

}  // namespace fanin::ort
