// Condensed layers of random weights that reach every path of packing.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "core/condensed.h"

namespace fanin {

enum class Mask {
  kUniform,
  kClustered,  // each row reads neighboring columns, twice as many as its fan-in
  kEnds,       // each row reads the first and the last columns
};

struct LayerSpec {
  int64_t in_features;
  int64_t out_features;
  int64_t fan_in;  // in_features at most
  int64_t active;  // stored rows, out_features at most
  Mask mask = Mask::kUniform;
  bool padded = false;  // half of the rows store fewer than fan_in weights
  ValueType values = ValueType::kFloat32;
  IndexType indices = IndexType::kInt32;
};

// Owns what its view points to.
struct Layer {
  LayerSpec spec;
  std::vector<float> values32;
  std::vector<uint16_t> values16;
  std::vector<int8_t> values8;
  std::vector<uint16_t> indices16;
  std::vector<int32_t> indices32;
  std::vector<int32_t> rows;
  std::vector<float> bias;  // int8 layers have none

  CondensedView view() const;

  // The same weights as float32.
  Layer widened() const;
};

Layer make_layer(const LayerSpec& spec, std::mt19937& random);

// Uniform in [-2, 2): cheap to compute, for emulated CPUs.
std::vector<float> random_floats(size_t count, std::mt19937& random);

}  // namespace fanin
