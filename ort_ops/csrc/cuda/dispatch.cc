#include "cuda/dispatch.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "core/divide_up.h"
#include "cuda/delta_plan.h"

namespace fanin::cuda {
namespace {

// The first row of an op for which `fits` is true; the end of the table if there is none.
template <typename Fits>
auto find_row(Op op, ValueType activations, const Fits& fits) {
  const std::vector<KernelRow>& table = kernel_table();
  return std::find_if(table.begin(), table.end(), [&](const KernelRow& row) {
    return row.op == op && row.activations == activations && fits(row);
  });
}

// mma.m16n8k16 of 16 bits and cp.async are there from this capability on.
constexpr int64_t kExpandCapability = 80;
// A prototype of the kernel was measured on an H200 from 5 to 20 % of the weights. With fewer,
// nearly all that it multiplies are zeros; with more than half, its words take more bytes than the
// dense weight.
constexpr double kLeastDensity = 0.04, kMostDensity = 0.5;

// Of a multiprocessor; with fewer, the time of a layer is that of a launch and of staging x.
constexpr int64_t kLeastWeights = 4096;
// With fewer weights, so many are more than 255 columns apart that steps take as many bytes as
// columns of 16 bits.
constexpr double kLeastDeltaDensity = 0.005;

double density_of(const LayerFacts& layer) {
  return static_cast<double>(layer.weights) /
         (static_cast<double>(layer.in_features) * static_cast<double>(layer.out_features));
}

}  // namespace

LayerFacts LayerFacts::of(const CondensedView& view, ValueType activations) {
  LayerFacts facts;
  facts.activations = activations;
  facts.in_features = view.in_features;
  facts.out_features = view.out_features;
  for (int64_t row = 0; row < view.active; ++row) facts.weights += view.true_fan_in(row);
  facts.values_fit = activations != ValueType::kFloat32 && cuda::values_fit(view, activations);
  return facts;
}

std::string expand_problem(const LayerFacts& layer, const DeviceLimits& limits) {
  if (layer.activations == ValueType::kFloat32)
    return "the expand kernel takes float16 or bfloat16 activations: export the model with "
           "--precision";
  if (!layer.values_fit)
    return std::string("the expand kernel does not round weights, and some of these are no ") +
           value_type_name(layer.activations) + " numbers: export the model with --precision " +
           value_type_name(layer.activations);
  if (limits.capability < kExpandCapability)
    return "the expand kernel needs a GPU of compute capability 8.0 and a build for it, this one "
           "has " +
           std::to_string(limits.capability / 10) + "." + std::to_string(limits.capability % 10) +
           ": take another kernel, or build with CMAKE_CUDA_ARCHITECTURES of this GPU";
  return "";
}

bool expand_pays(const LayerFacts& layer, const DeviceLimits& limits) {
  if (!expand_problem(layer, limits).empty()) return false;
  const double density = density_of(layer);
  // Smaller layers do not have one tile for each multiprocessor, and their time is that of a
  // launch.
  const int64_t tiles = divide_up(layer.out_features, ExpandShape::kRows) *
                        divide_up(layer.in_features, ExpandShape::kColumns);
  return density >= kLeastDensity && density <= kMostDensity && tiles >= limits.multiprocessors;
}

std::string delta_problem(const LayerFacts& layer, const DeviceLimits& limits) {
  if (delta_samples(layer.in_features, layer.activations, limits) > 0) return "";
  return "the delta kernel keeps x in shared memory, and " + std::to_string(layer.in_features) +
         " columns of " + value_type_name(layer.activations) +
         " are too many (up to 65536 that fit into " +
         std::to_string(limits.shared_bytes_per_block) + " bytes): take the stream kernel";
}

bool delta_pays(const LayerFacts& layer, const DeviceLimits& limits) {
  return delta_problem(layer, limits).empty() && density_of(layer) >= kLeastDeltaDensity &&
         layer.weights >= kLeastWeights * limits.multiprocessors;
}

void refuse_impossible(const KernelRow& row, const LayerFacts& layer, const DeviceLimits& limits) {
  std::string problem;
  if (row.layout == Layout::kExpand) problem = expand_problem(layer, limits);
  if (row.layout == Layout::kDelta) problem = delta_problem(layer, limits);
  if (!problem.empty()) throw std::invalid_argument(problem);
}

bool unproven_requested() {
  const char* asked = std::getenv("FANIN_CUDA_UNPROVEN");
  const std::string word = asked ? asked : "";
  if (word.empty() || word == "off") return false;
  if (word == "on") return true;
  throw std::invalid_argument("FANIN_CUDA_UNPROVEN '" + word +
                              "' is unknown, it must be on or off");
}

int64_t last_batch(const KernelRow& row, int64_t in_features, const DeviceLimits& limits) {
  if (row.shared_samples == 0) return row.batches.max;
  const int64_t samples = row.layout == Layout::kDelta
                              ? delta_samples(in_features, row.activations, limits)
                              : stageable_samples(in_features, row.activations, limits);
  return samples >= row.shared_samples ? row.batches.max : std::max<int64_t>(1, samples);
}

std::vector<ServedBatches> select_kernels(const LayerFacts& layer, BatchRange batches,
                                          const DeviceLimits& limits, bool unproven) {
  const auto may_serve = [&](const KernelRow& row) {
    if (!row.proven && !unproven) return false;
    if (row.layout == Layout::kExpand) return expand_pays(layer, limits);
    return row.layout != Layout::kDelta || delta_pays(layer, limits);
  };
  std::vector<ServedBatches> found;
  const int64_t last = std::max<int64_t>(1, batches.max);
  for (int64_t first = std::clamp<int64_t>(batches.min, 1, last);;) {
    // Rows of higher preference that begin at a later batch end the range.
    int64_t end = last;
    const auto row = find_row(Op::kGemm, layer.activations, [&](const KernelRow& candidate) {
      if (!may_serve(candidate)) return false;
      if (candidate.layout == Layout::kExpand && first < candidate.batches.min) {
        end = std::min(end, candidate.batches.min - 1);
        return false;
      }
      return first <= last_batch(candidate, layer.in_features, limits);
    });
    end = std::min(end, last_batch(*row, layer.in_features, limits));
    found.push_back({&*row, {first, end}});
    if (end == last) return found;
    first = end + 1;
  }
}

const KernelRow& select_conv_kernel(ValueType activations) {
  return *find_row(Op::kConv, activations, [](const KernelRow&) { return true; });
}

const KernelRow& find_kernel(const std::string& name, ValueType activations) {
  const auto found =
      find_row(Op::kGemm, activations, [&](const KernelRow& row) { return row.name == name; });
  if (found != kernel_table().end()) return *found;
  throw std::invalid_argument("the CUDA kernel table has no " + name + " for " +
                              value_type_name(activations) + " activations");
}

}  // namespace fanin::cuda
