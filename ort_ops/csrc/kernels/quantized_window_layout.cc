#include "kernels/quantized_window_layout.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/parallel.h"
#include "kernels/source_row.h"

namespace fanin {
namespace {

// Writing the outputs of a group one by one, in another order, takes as long as this many steps
// (an estimate: a load and a store of each byte, against 16 cycles for a step of 8 samples).
constexpr size_t kScatterSteps = 12;

// The entries of a stored row that are still to be packed or found, without zeros.
class Cursor {
 public:
  Cursor(const CondensedView& view, int64_t row) : view_(&view), at_(source_row(view, row)) {
    skip_zeros();
  }
  Cursor() = default;

  bool done() const { return at_.at == at_.end; }
  int64_t column() const { return view_->index(at_.row, at_.at); }
  int8_t weight() const {
    return static_cast<const int8_t*>(view_->values)[at_.row * view_->fan_in + at_.at];
  }
  void next() {
    ++at_.at;
    skip_zeros();
  }

 private:
  void skip_zeros() {
    while (!done() && weight() == 0) ++at_.at;
  }

  const CondensedView* view_ = nullptr;
  SourceRow at_;
};

// Walks a group's window over the columns. Calls place(lane, slot, index, weight) for the weights
// of a step after begin_step(column); a slot is one of the four weights of a lane.
template <typename BeginStep, typename Place>
void walk(std::vector<Cursor>& lanes, const QuantizedWindowGeometry& geometry, int64_t in_features,
          const BeginStep& begin_step, const Place& place) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  const int64_t last_start = std::max<int64_t>(0, in_features - geometry.columns);
  for (;;) {
    int64_t next = kNone;
    for (const Cursor& lane : lanes)
      if (!lane.done()) next = std::min(next, lane.column());
    if (next == kNone) return;
    const int64_t start = std::min(next / geometry.grain * geometry.grain, last_start);
    begin_step(start);
    for (size_t i = 0; i < lanes.size(); ++i)
      for (int number = 0; number < geometry.units() && !lanes[i].done(); ++number) {
        const int64_t index = (lanes[i].column() - start) / geometry.unit;
        if (index >= geometry.columns / geometry.unit) break;
        const int64_t first = start + index * geometry.unit;
        for (; !lanes[i].done() && lanes[i].column() < first + geometry.unit; lanes[i].next()) {
          const auto slot = number * geometry.unit + static_cast<int>(lanes[i].column() - first);
          place(i, slot, static_cast<uint8_t>(index), lanes[i].weight());
        }
      }
  }
}

size_t group_count(size_t lanes, size_t rows) { return (lanes + rows - 1) / rows; }

// The stored row of each lane, -1 for none.
using Lanes = std::vector<int64_t>;

// Lane i has output i.
Lanes natural_order(const CondensedView& view) {
  Lanes lanes(static_cast<size_t>(view.out_features), -1);
  for (int64_t row = 0; row < view.active; ++row) lanes[static_cast<size_t>(view.rows[row])] = row;
  return lanes;
}

// Stored rows only, by their mean column: those that read the same part of x share a group.
Lanes sorted_order(const CondensedView& view) {
  Lanes lanes(static_cast<size_t>(view.active));
  std::iota(lanes.begin(), lanes.end(), 0);
  std::vector<int64_t> columns(lanes.size(), 0);
  for (int64_t row = 0; row < view.active; ++row)
    for (int64_t j = 0; j < view.fan_in; ++j)
      columns[static_cast<size_t>(row)] += view.index(row, j);
  std::stable_sort(lanes.begin(), lanes.end(), [&columns](int64_t a, int64_t b) {
    return columns[static_cast<size_t>(a)] < columns[static_cast<size_t>(b)];
  });
  return lanes;
}

std::vector<Cursor> cursors_of(const CondensedView& view, const Lanes& lanes, size_t group,
                               size_t rows) {
  std::vector<Cursor> cursors;
  const size_t end = std::min(lanes.size(), (group + 1) * rows);
  for (size_t lane = group * rows; lane < end; ++lane)
    cursors.push_back(lanes[lane] < 0 ? Cursor() : Cursor(view, lanes[lane]));
  return cursors;
}

// Calls body(piece, first group, last group) on the executor's threads.
template <typename Body>
void for_pieces(const CondensedView& view, size_t groups, const Executor& executor,
                const Body& body) {
  const size_t pieces = piece_count(view, groups);
  auto task = [&](size_t piece) {
    body(piece, chunk_begin(groups, pieces, piece), chunk_begin(groups, pieces, piece + 1));
  };
  run_tasks(executor, pieces, task);
}

size_t count_steps(const CondensedView& view, const QuantizedWindowGeometry& geometry,
                   const Lanes& lanes, const Executor& executor) {
  const auto rows = static_cast<size_t>(geometry.rows);
  const size_t groups = group_count(lanes.size(), rows);
  std::vector<size_t> steps(piece_count(view, groups));
  for_pieces(view, groups, executor, [&](size_t piece, size_t begin, size_t end) {
    for (size_t group = begin; group < end; ++group) {
      std::vector<Cursor> cursors = cursors_of(view, lanes, group, rows);
      walk(
          cursors, geometry, view.in_features, [&](int64_t) { ++steps[piece]; },
          [](size_t, int, uint8_t, int8_t) {});
    }
  });
  return std::accumulate(steps.begin(), steps.end(), size_t{0});
}

// Chooses the order of lanes that takes fewer steps, and sets `outputs` unless it is the natural
// one.
Lanes choose_order(const CondensedView& view, const QuantizedWindowGeometry& geometry,
                   const Executor& executor, std::vector<int32_t>& outputs) {
  Lanes natural = natural_order(view);
  const auto rows = static_cast<size_t>(geometry.rows);
  const size_t scatter = kScatterSteps * group_count(natural.size(), rows);
  const size_t steps = count_steps(view, geometry, natural, executor);
  const auto weights = static_cast<size_t>(view.active * view.fan_in);
  if (steps <= scatter + weights / (4 * rows)) return natural;
  Lanes sorted = sorted_order(view);
  if (steps <= scatter + count_steps(view, geometry, sorted, executor)) return natural;
  for (const int64_t row : sorted) outputs.push_back(view.rows[row]);
  // Groups without steps give the ablated outputs.
  for (size_t o = 0; o < natural.size(); ++o)
    if (natural[o] < 0) {
      sorted.push_back(-1);
      outputs.push_back(static_cast<int32_t>(o));
    }
  return sorted;
}

}  // namespace

QuantizedWindowLayout pack_quantized_windows(const CondensedView& view,
                                             const QuantizedWindowGeometry& geometry,
                                             const Executor& executor) {
  QuantizedWindowLayout layout;
  const Lanes lanes = choose_order(view, geometry, executor, layout.outputs);
  const auto rows = static_cast<size_t>(geometry.rows);
  const size_t groups = group_count(lanes.size(), rows);
  if (!layout.outputs.empty()) layout.outputs.resize(groups * rows, -1);
  layout.weight_sums.resize(groups * rows);
  layout.groups.resize(groups);
  layout.pieces.resize(piece_count(view, groups));
  std::vector<int64_t> weights(layout.pieces.size());
  for_pieces(view, groups, executor, [&](size_t piece, size_t begin, size_t end) {
    GrowingBuffer<uint8_t> data;
    GrowingBuffer<uint32_t> displacements;
    const auto step_bytes = static_cast<size_t>(geometry.step_bytes());
    const auto first_weight = static_cast<size_t>(geometry.first_weight());
    for (size_t group = begin; group < end; ++group) {
      const size_t first = displacements.size();
      std::vector<Cursor> cursors = cursors_of(view, lanes, group, rows);
      uint8_t* step = nullptr;
      walk(
          cursors, geometry, view.in_features,
          [&](int64_t start) {
            step = data.extend(step_bytes);
            *displacements.extend(1) = static_cast<uint32_t>(start);
          },
          [&](size_t lane, int slot, uint8_t index, int8_t weight) {
            step[geometry.index_byte(static_cast<int>(lane), slot / geometry.unit)] = index;
            step[first_weight + lane * 4 + static_cast<size_t>(slot)] =
                static_cast<uint8_t>(weight);
            layout.weight_sums[group * rows + lane] += weight;
            ++weights[piece];
          });
      layout.groups[group].count = displacements.size() - first;
    }
    layout.pieces[piece] = {data.take(), displacements.take()};
    const uint8_t* at = layout.pieces[piece].steps.data();
    const uint32_t* displacement = layout.pieces[piece].displacements.data();
    for (size_t group = begin; group < end; ++group) {
      QuantizedSteps& steps = layout.groups[group];
      steps.data = at;
      steps.displacements = displacement;
      at += steps.count * step_bytes;
      displacement += steps.count;
    }
  });
  layout.weights = std::accumulate(weights.begin(), weights.end(), int64_t{0});
  for (const QuantizedSteps& group : layout.groups) layout.steps += group.count;
  return layout;
}

bool holds_quantized_windows(const QuantizedWindowLayout& layout,
                             const QuantizedWindowGeometry& geometry, const CondensedView& view) {
  const auto rows = static_cast<size_t>(geometry.rows);
  Lanes lanes(layout.groups.size() * rows, -1);
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    const int64_t output =
        layout.outputs.empty() ? static_cast<int64_t>(lane) : layout.outputs[lane];
    if (output >= 0) lanes[lane] = stored_row(view, output);
  }
  for (size_t group = 0; group < layout.groups.size(); ++group) {
    const QuantizedSteps& steps = layout.groups[group];
    std::vector<Cursor> cursors = cursors_of(view, lanes, group, rows);
    for (size_t i = 0; i < steps.count; ++i) {
      const uint8_t* step = steps.data + i * static_cast<size_t>(geometry.step_bytes());
      for (size_t byte = 0; byte < 4 * rows; ++byte) {
        const auto weight = static_cast<int8_t>(step[geometry.first_weight() + byte]);
        if (weight == 0) continue;
        Cursor& lane = cursors[byte / 4];
        const int slot = static_cast<int>(byte % 4);
        const int index =
            step[geometry.index_byte(static_cast<int>(byte / 4), slot / geometry.unit)];
        if (lane.done() || lane.weight() != weight ||
            lane.column() !=
                int64_t{steps.displacements[i]} + index * geometry.unit + slot % geometry.unit)
          return false;
        lane.next();
      }
    }
    for (const Cursor& lane : cursors)
      if (!lane.done()) return false;
  }
  return true;
}

}  // namespace fanin
