// The attributes and sizes of the fully connected ops.
#pragma once

#include <cstdint>
#include <vector>

#include "ort/condensed_op.h"
#include "ort/node_inputs.h"

namespace fanin::ort {

// Y has the shape of X with out_features last; symbolic dimensions keep their names.
void infer_gemm_shape(const ShapeInference& node, int y_type);

// The members that ops.h describes.
class GemmShape {
 public:
  struct RunSize {
    int64_t batch;
  };

  explicit GemmShape(const KernelInfo& info);

  WeightSizes sizes() const { return {in_features_, out_features_, "out_features"}; }

  // Refuses X unless it is [..., in_features] with at least one dimension.
  void check_x(const Shape& x) const;

  // The product of all dimensions of X except the last. Refuses an overflow.
  RunSize run_size(const Shape& x) const;

  // The batches that fit a declared shape: symbolic dimensions are at least 1 (an empty batch needs
  // no kernel).
  BatchRange batches(const Shape& x) const;

  // [..., out_features]; empty if the rank of X is unknown.
  std::vector<int64_t> output_dims(const Shape& x) const;

 protected:
  int64_t in_features_;
  int64_t out_features_;
  Clip clip_;
};

}  // namespace fanin::ort
