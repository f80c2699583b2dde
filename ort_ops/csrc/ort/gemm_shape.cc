#include "ort/gemm_shape.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace fanin::ort {

void infer_gemm_shape(const ShapeInference& node, int y_type) {
  const std::optional<int64_t> out_features = node.int_attribute("out_features");
  InferredShape shape = node.x();
  if (!out_features || *out_features < 1 || shape.dims.empty()) return;
  shape.type = y_type;
  shape.dims.back() = *out_features;
  shape.names.back().clear();
  node.set_y(std::move(shape));
}

GemmShape::GemmShape(const KernelInfo& info)
    : in_features_(size_attribute(info, "in_features")),
      out_features_(size_attribute(info, "out_features")),
      clip_(read_clip(info)) {}

void GemmShape::check_x(const Shape& x) const {
  if (x.rank == 0) refuse("X is a scalar, it must be [..., in_features]");
  if (!agree(x.back(), in_features_)) {
    refuse("X has shape " + to_string(x) + ", its last dimension must be in_features, which is " +
           std::to_string(in_features_));
  }
}

GemmShape::RunSize GemmShape::run_size(const Shape& x) const {
  const int64_t* end = x.dims + x.rank - 1;
  if (std::find(x.dims, end, 0) != end) return {0};
  int64_t batch = 1;
  for (const int64_t* dim = x.dims; dim != end; ++dim) {
    if (__builtin_mul_overflow(batch, *dim, &batch))
      refuse("X has shape " + to_string(x) + ", which is too large");
  }
  return {batch};
}

BatchRange GemmShape::batches(const Shape& x) const {
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

std::vector<int64_t> GemmShape::output_dims(const Shape& x) const {
  std::vector<int64_t> dims(x.dims, x.dims + x.rank);
  if (!dims.empty()) dims.back() = out_features_;
  return dims;
}

}  // namespace fanin::ort
