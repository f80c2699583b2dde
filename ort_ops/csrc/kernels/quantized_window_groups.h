// The groups of a window layout, run on some samples: what CondensedGemm and convolutions share.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/gemm_kernel.h"
#include "kernels/quantized_finish.h"
#include "kernels/quantized_window_layout.h"

namespace fanin {

inline constexpr int kMaxWindowRows = 64;  // of a group

// Samples, and where their outputs are.
struct QuantizedSamples {
  const uint8_t* const* x;  // [count], of the type that the kernel reads
  int count;
  const int32_t* zero_points;       // [count], of x as the kernel reads it
  bool common_zero_point;           // all zero points are the first one
  const float* sample_multipliers;  // [count], or null
  uint8_t* y;                       // of the first sample and output 0
  const uint8_t* residual;          // likewise, or null
  int64_t stride;                   // elements from one sample's outputs to the next ones
  int64_t output_stride = 1;        // between outputs; 1 unless the layout is scattered

  // Those from number `first` on, `most` at most; `element` is the bytes of one of y.
  QuantizedSamples part(int first, int most, int64_t element) const {
    const auto moved = [](auto* array, int64_t by) { return array ? array + by : nullptr; };
    const int64_t at = first * stride * element;
    QuantizedSamples part = *this;
    part.x += first;
    part.count = count - first < most ? count - first : most;
    part.zero_points += first;
    part.sample_multipliers = moved(sample_multipliers, first);
    part.y += at;
    part.residual = moved(residual, at);
    return part;
  }
};

class QuantizedWindowGroups {
 public:
  // Columns lie side by side in x in segments of so many; in_features is a multiple of it. Throws
  // std::bad_alloc.
  QuantizedWindowGroups(const CondensedView& view, int64_t segment, const QuantizedWindowOps& ops,
                        const Executor& executor);

  size_t count() const { return layout_.groups.size(); }

  // Of each group, for samples whose segments follow one another without gaps.
  const QuantizedSteps* steps() const { return layout_.groups.data(); }
  size_t all_steps() const { return layout_.steps; }

  // Whether the outputs of a group lie in any order. If not, group i has those from i * rows on.
  bool scattered() const { return !layout_.outputs.empty(); }

  // The end of the groups from `first` on, `last` at most, whose weights stay in L2 while several
  // tiles of samples pass over them.
  size_t resident(size_t first, size_t last) const;

  // The first of the groups before `last`, from `first` on, of which the same is true.
  size_t resident_before(size_t first, size_t last) const;

  // What each group takes for so many samples, for plans.
  std::vector<double> microseconds(int64_t samples) const;

  // Runs groups first to last - 1, with `steps` in place of steps().
  void run(const QuantizedSteps* steps, size_t first, size_t last, const QuantizedSamples& samples,
           const QuantizedEpilogue& epilogue, const FinishBounds& bounds) const;
  void run(size_t first, size_t last, const QuantizedSamples& samples,
           const QuantizedEpilogue& epilogue, const FinishBounds& bounds) const {
    run(steps(), first, last, samples, epilogue, bounds);
  }

  LayoutInfo info() const;

  // Whether packing the valid `view` would give this object.
  bool holds(const CondensedView& view) const;

 private:
  size_t step_bytes() const;
  size_t group_bytes(size_t group) const;
  void place_neighbors(size_t group, const QuantizedSamples& samples,
                       const QuantizedEpilogue& epilogue, QuantizedFinish& finish) const;
  void finish_scattered(size_t group, const QuantizedSamples& samples,
                        const QuantizedEpilogue& epilogue, QuantizedFinish& finish,
                        const int32_t* sums) const;

  const QuantizedWindowOps& ops_;
  int64_t in_features_;
  int64_t out_features_;
  int64_t segment_;
  QuantizedWindowLayout layout_;
};

}  // namespace fanin
