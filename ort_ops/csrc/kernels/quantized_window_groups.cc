#include "kernels/quantized_window_groups.h"

#include <algorithm>

#include "core/divide_up.h"

namespace fanin {
namespace {

// Weights that stay in L2 while the samples of a tile pass over them.
constexpr size_t kSharedBytes = 256 * 1024;

// For plans (estimates): a group's outputs count as this many steps; reading weights beyond L2.
constexpr double kGroupSteps = 4;
constexpr size_t kCacheBytes = 1024 * 1024;
constexpr double kMicrosecondsPerColdByte = 3e-5;

// Outputs of the lanes of one group that do not lie side by side, in the order of the lanes.
struct ScatteredGroup {
  alignas(kAlignment) float multipliers[kMaxWindowRows];
  alignas(kAlignment) int32_t bias[kMaxWindowRows];
  alignas(kAlignment) float float_bias[kMaxWindowRows];
  alignas(kAlignment) uint8_t y[kQuantizedTile * kMaxWindowRows * sizeof(float)];
  alignas(kAlignment) uint8_t residual[kQuantizedTile * kMaxWindowRows * sizeof(float)];
};

template <typename T>
void gather(const int32_t* outputs, int lanes, const T* from, int64_t stride, T* to) {
  for (int lane = 0; lane < lanes; ++lane) to[lane] = from[outputs[lane] * stride];
}

}  // namespace

QuantizedWindowGroups::QuantizedWindowGroups(const CondensedView& view, int64_t segment,
                                             const QuantizedWindowOps& ops,
                                             const Executor& executor)
    : ops_(ops),
      in_features_(view.in_features),
      out_features_(view.out_features),
      segment_(segment),
      layout_(pack_quantized_windows(view, ops.geometry, segment, executor)) {}

size_t QuantizedWindowGroups::resident(size_t first, size_t last) const {
  size_t end = first, bytes = 0;
  while (end < last && (end == first || bytes < kSharedBytes)) bytes += group_bytes(end++);
  return end;
}

size_t QuantizedWindowGroups::resident_before(size_t first, size_t last) const {
  size_t begin = last, bytes = 0;
  while (begin > first && (begin == last || bytes < kSharedBytes)) bytes += group_bytes(--begin);
  return begin;
}

std::vector<double> QuantizedWindowGroups::microseconds(int64_t samples) const {
  const double sums =
      ops_.microseconds_per_step * static_cast<double>(divide_up(samples, ops_.max_samples));
  const double cold =
      step_bytes() > kCacheBytes ? kMicrosecondsPerColdByte * ops_.geometry.step_bytes() : 0.0;
  std::vector<double> groups;
  for (const QuantizedSteps& group : layout_.groups)
    groups.push_back((static_cast<double>(group.count) + kGroupSteps) * std::max(sums, cold));
  return groups;
}

void QuantizedWindowGroups::run(const QuantizedSteps* steps, size_t first, size_t last,
                                const QuantizedSamples& samples, const QuantizedEpilogue& epilogue,
                                const FinishBounds& bounds) const {
  alignas(kAlignment) int32_t sums[kQuantizedTile * kMaxWindowRows];
  QuantizedFinish finish;
  finish.type = epilogue.type;
  finish.sample_multipliers = samples.sample_multipliers;
  finish.common_zero_point = samples.common_zero_point;
  finish.zero_point = epilogue.zero_point;
  finish.residual_zero_point = epilogue.residual_zero_point;
  finish.residual_multiplier = epilogue.residual_multiplier;
  finish.low = bounds.low;
  finish.high = bounds.high;
  const auto rows = static_cast<size_t>(ops_.geometry.rows);
  // Few samples do not pay for what a group has to prepare.
  const bool at_once =
      ops_.run && !scattered() && finish.plain() && samples.count > ops_.max_samples;
  for (size_t group = first; group < last; ++group) {
    finish.weight_sums = layout_.weight_sums.data() + group * rows;
    if (at_once) {
      finish.samples = samples.count;
      finish.zero_points = samples.zero_points;
      place_neighbors(group, samples, epilogue, finish);
      const QuantizedSteps& next = steps[group + 1 < count() ? group + 1 : group];
      if (ops_.run(steps[group], samples.x, finish, next)) continue;
    }
    for (int s = 0; s < samples.count; s += ops_.max_samples) {
      const QuantizedSamples tile = samples.part(s, ops_.max_samples, element_bytes(epilogue.type));
      finish.samples = tile.count;
      finish.sample_multipliers = tile.sample_multipliers;
      finish.zero_points = tile.zero_points;
      ops_.sum(steps[group], tile.x, tile.count, sums);
      if (scattered()) {
        finish_scattered(group, tile, epilogue, finish, sums);
      } else {
        place_neighbors(group, tile, epilogue, finish);
        ops_.finish(finish, sums);
      }
    }
  }
}

// Outputs side by side.
void QuantizedWindowGroups::place_neighbors(size_t group, const QuantizedSamples& samples,
                                            const QuantizedEpilogue& epilogue,
                                            QuantizedFinish& finish) const {
  const int64_t rows = ops_.geometry.rows, output = static_cast<int64_t>(group) * rows;
  const int64_t at = output * element_bytes(epilogue.type);
  finish.lanes = static_cast<int>(std::min(rows, out_features_ - output));
  finish.stride = samples.stride;
  finish.y = samples.y + at;
  finish.residual = samples.residual ? samples.residual + at : nullptr;
  finish.multipliers = epilogue.multipliers + output;
  finish.bias = epilogue.bias ? epilogue.bias + output : nullptr;
  finish.float_bias = epilogue.float_bias ? epilogue.float_bias + output : nullptr;
}

// Outputs in any order: everything is brought into the order of the lanes and back.
void QuantizedWindowGroups::finish_scattered(size_t group, const QuantizedSamples& samples,
                                             const QuantizedEpilogue& epilogue,
                                             QuantizedFinish& finish, const int32_t* sums) const {
  const int32_t* outputs = layout_.outputs.data() + group * static_cast<size_t>(ops_.geometry.rows);
  int lanes = ops_.geometry.rows;
  while (outputs[lanes - 1] < 0) --lanes;
  ScatteredGroup lane;
  gather(outputs, lanes, epilogue.multipliers, 1, lane.multipliers);
  if (epilogue.bias) gather(outputs, lanes, epilogue.bias, 1, lane.bias);
  if (epilogue.float_bias) gather(outputs, lanes, epilogue.float_bias, 1, lane.float_bias);
  finish.lanes = lanes;
  finish.stride = kMaxWindowRows;
  finish.y = lane.y;
  finish.residual = samples.residual ? lane.residual : nullptr;
  finish.multipliers = lane.multipliers;
  finish.bias = epilogue.bias ? lane.bias : nullptr;
  finish.float_bias = epilogue.float_bias ? lane.float_bias : nullptr;
  // Bytes or floats; their values do not matter here.
  const auto move = [&](auto element) {
    using T = decltype(element);
    T* y = reinterpret_cast<T*>(samples.y);
    const T* residual = reinterpret_cast<const T*>(samples.residual);
    for (int s = 0; residual && s < samples.count; ++s)
      gather(outputs, lanes, residual + s * samples.stride, samples.output_stride,
             reinterpret_cast<T*>(lane.residual) + s * kMaxWindowRows);
    ops_.finish(finish, sums);
    for (int s = 0; s < samples.count; ++s)
      for (int l = 0; l < lanes; ++l)
        y[s * samples.stride + outputs[l] * samples.output_stride] =
            reinterpret_cast<const T*>(lane.y)[s * kMaxWindowRows + l];
  };
  if (epilogue.type == QuantizedType::kFloat32)
    move(float{});
  else
    move(uint8_t{});
}

LayoutInfo QuantizedWindowGroups::info() const {
  const size_t bytes =
      step_bytes() + (layout_.weight_sums.size() + layout_.outputs.size()) * sizeof(int32_t);
  const auto slots = static_cast<double>(layout_.steps) * 4 * ops_.geometry.rows;
  return {static_cast<int64_t>(bytes),
          layout_.weights > 0 ? slots / static_cast<double>(layout_.weights) : 1.0, 0.0};
}

bool QuantizedWindowGroups::holds(const CondensedView& view) const {
  return in_features_ == view.in_features && out_features_ == view.out_features &&
         holds_quantized_windows(layout_, ops_.geometry, view);
}

size_t QuantizedWindowGroups::group_bytes(size_t group) const {
  return layout_.groups[group].count * static_cast<size_t>(ops_.geometry.step_bytes());
}

size_t QuantizedWindowGroups::step_bytes() const {
  return layout_.steps * (static_cast<size_t>(ops_.geometry.step_bytes()) + sizeof(uint32_t));
}

}  // namespace fanin
