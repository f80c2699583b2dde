#include "kernels/window_layout.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/parallel.h"
#include "kernels/source_row.h"

namespace fanin {
namespace {

// A lane of a step costs 3 or 5 bytes and no branch; a remainder entry 12 bytes and several
// instructions. The window leaves an entry behind when that fills more than this many lanes.
constexpr int kLanesPerRemainder = 16;

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

double centroid(const CondensedView& view, int64_t row) {
  const int64_t fan_in = view.true_fan_in(row);
  double sum = 0;
  for (int64_t j = 0; j < fan_in; ++j) sum += static_cast<double>(view.index(row, j));
  return sum / static_cast<double>(fan_in);
}

// Stored rows in the order of packing. Rows that read neighbouring columns share windows, so where
// rows have fields of their own (convolution-like masks) they are sorted by the mean column. For
// uniform masks the means differ by chance only, and keeping the order keeps outputs side by side.
std::vector<int64_t> row_order(const CondensedView& view) {
  std::vector<int64_t> order(static_cast<size_t>(view.active));
  std::iota(order.begin(), order.end(), 0);
  std::vector<double> centroids(order.size());
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < view.active; ++i) {
    centroids[i] = centroid(view, i);
    sum += centroids[i];
    squares += centroids[i] * centroids[i];
  }
  const double count = static_cast<double>(std::max<int64_t>(1, view.active));
  const double variance = squares / count - sum / count * (sum / count);
  const double in_features = static_cast<double>(view.in_features);
  const double by_chance = in_features * in_features / (12.0 * static_cast<double>(view.fan_in));
  if (variance > 4 * by_chance)
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return centroids[a] < centroids[b]; });
  return order;
}

int64_t block_count(const CondensedView& view, const WindowGeometry& geometry) {
  const int64_t columns = geometry.block_columns;
  return std::max<int64_t>(geometry.window_blocks, (view.in_features + columns - 1) / columns);
}

// The index byte of each column of a window: a division for each weight would be a third of the
// packing.
std::vector<uint8_t> window_slots(const WindowGeometry& geometry) {
  std::vector<uint8_t> slots;
  for (int block = 0; block < geometry.window_blocks; ++block)
    for (int column = 0; column < geometry.block_columns; ++column)
      slots.push_back(static_cast<uint8_t>(block * geometry.block_slots + column));
  return slots;
}

// Packs one piece.
class Packer {
 public:
  Packer(const CondensedView& view, const WindowGeometry& geometry, int64_t blocks)
      : view_(view),
        geometry_(geometry),
        blocks_(blocks),
        slots_(window_slots(geometry)),
        cursors_(geometry.rows),
        next_(geometry.rows) {}

  // Packs order[first .. last), a group's rows, and writes their outputs.
  WindowGroup pack_group(const std::vector<int64_t>& order, size_t first, size_t last,
                         int32_t* outputs) {
    const size_t step_begin = advances_.size(), remainder_begin = remainder_.size();
    bool contiguous = true;
    for (int r = 0; r < geometry_.rows; ++r) {
      const bool stored = first + r < last;
      const int64_t row = stored ? order[first + r] : 0;
      cursors_[r] = stored ? source_row(view_, row) : SourceRow{};
      weights_ += cursors_[r].end;
      outputs[r] = stored ? view_.rows[row] : -1;
      contiguous &= !stored || view_.rows[row] == view_.rows[order[first]] + r;
      load_next(r);
    }
    int64_t at = 0;  // block that the kernel's window starts at
    for (int64_t block = 0;;) {
      const uint32_t oldest = *std::min_element(next_.begin(), next_.end());
      if (oldest == kNone) break;
      block = std::max(block, std::min<int64_t>(oldest / geometry_.block_columns, last_block()));
      while (slides(block)) drop_block(block++);
      for (; block - at > kMaxAdvance; at += kMaxAdvance)
        emit(kMaxAdvance, kNone);  // an empty step in between
      emit(static_cast<uint16_t>(block - at), begin(block));
      at = block;
    }
    WindowGroup group{};  // its pointers come when the piece is complete
    group.step_count = advances_.size() - step_begin;
    group.remainder_count = remainder_.size() - remainder_begin;
    group.contiguous = contiguous;
    return group;
  }

  void reserve(size_t weights) {
    steps_.reserve(weights / geometry_.rows * geometry_.step_bytes * 6 / 5);
    advances_.reserve(weights / geometry_.rows);
  }

  int64_t weights() const { return weights_; }
  WindowPiece take() { return {steps_.take(), advances_.take(), remainder_.take()}; }

 private:
  static constexpr uint16_t kMaxAdvance = std::numeric_limits<uint16_t>::max();

  int64_t last_block() const { return blocks_ - geometry_.window_blocks; }
  uint32_t begin(int64_t block) const {
    return static_cast<uint32_t>(block * geometry_.block_columns);
  }
  // As 64 bits: the end of the last window can lie above every index.
  int64_t window_end(int64_t block) const {
    return (block + geometry_.window_blocks) * geometry_.block_columns;
  }

  void load_next(int r) {
    const SourceRow& cursor = cursors_[r];
    next_[r] =
        cursor.at < cursor.end ? static_cast<uint32_t>(view_.index(cursor.row, cursor.at)) : kNone;
  }

  // Whether moving the window by one block fills enough lanes to pay for the entries left behind.
  bool slides(int64_t block) const {
    if (block >= last_block()) return false;
    const uint32_t new_begin = begin(block + 1);
    const int64_t end = window_end(block), new_end = window_end(block + 1);
    int gain = 0, left = 0;
    for (int r = 0; r < geometry_.rows; ++r) {
      const SourceRow& cursor = cursors_[r];
      uint32_t column = next_[r];
      gain -= column < end;
      for (int64_t j = cursor.at; column < new_begin; ++left)
        column = ++j < cursor.end ? static_cast<uint32_t>(view_.index(cursor.row, j)) : kNone;
      gain += column < new_end;
    }
    return gain > 0 && gain > left * kLanesPerRemainder;
  }

  // Moves the entries of a block that the window leaves to the remainder.
  void drop_block(int64_t block) {
    const uint32_t new_begin = begin(block + 1);
    for (int r = 0; r < geometry_.rows; ++r)
      for (SourceRow& cursor = cursors_[r]; next_[r] < new_begin; load_next(r)) {
        *remainder_.extend(1) = {next_[r], static_cast<uint32_t>(r), weight(cursor)};
        ++cursor.at;
      }
  }

  float weight(const SourceRow& cursor) const { return view_.value(cursor.row, cursor.at); }

  // A layout of float32 takes every view, one of 16-bit weights only views of the same type.
  void store_weight(const SourceRow& cursor, uint8_t* to) const {
    if (geometry_.weight_type == ValueType::kFloat32) {
      const float value = weight(cursor);
      std::memcpy(to, &value, sizeof(value));
    } else {
      const auto* bits = static_cast<const uint16_t*>(view_.values);
      std::memcpy(to, bits + cursor.row * view_.fan_in + cursor.at, sizeof(*bits));
    }
  }

  // Appends a step that takes the next entry of every row that has one in the window; kNone as
  // the window's first column takes none.
  void emit(uint16_t advance, uint32_t first_column) {
    const size_t rows = static_cast<size_t>(geometry_.rows);
    uint8_t* indices = steps_.extend(static_cast<size_t>(geometry_.step_bytes));
    for (size_t r = 0; r < rows; ++r) {
      uint8_t slot = geometry_.padding;
      // kNone is never in a window: it is above every column by more than a window.
      if (first_column != kNone && next_[r] != kNone && next_[r] - first_column < slots_.size()) {
        slot = slots_[next_[r] - first_column];
        store_weight(cursors_[r], indices + geometry_.weight_byte[r]);
        ++cursors_[r].at;
        load_next(static_cast<int>(r));
      }
      indices[geometry_.lane_byte[r]] = slot;
    }
    *advances_.extend(1) = advance;
  }

  const CondensedView& view_;
  const WindowGeometry& geometry_;
  int64_t blocks_;
  std::vector<uint8_t> slots_;
  std::vector<SourceRow> cursors_;
  std::vector<uint32_t> next_;  // column of each cursor, kNone at its end
  int64_t weights_ = 0;
  GrowingBuffer<uint8_t> steps_;
  GrowingBuffer<uint16_t> advances_;
  GrowingBuffer<WindowRemainder> remainder_;
};

// Whether the lanes and the remainder of a group are the rows that the cursors stand at. The
// entries of a layout are distinct, so it is enough that each is in its row and none is missing.
// `columns` has the column in the window for each index byte, -1 for padding.
bool holds_group(const WindowGroup& group, const WindowGeometry& geometry,
                 const std::vector<int>& columns, const CondensedView& view,
                 std::vector<SourceRow> cursors) {
  const size_t rows = static_cast<size_t>(geometry.rows);
  size_t found = group.remainder_count, expected = 0;
  for (size_t r = 0; r < rows; ++r) expected += static_cast<size_t>(cursors[r].end);
  std::vector<SourceRow> left = cursors;
  for (size_t i = 0; i < group.remainder_count; ++i) {
    const WindowRemainder& entry = group.remainder[i];
    if (!left[entry.row].take(view, entry.column, entry.weight)) return false;
  }
  int64_t first = 0;  // column of the window
  for (size_t step = 0; step < group.step_count; ++step) {
    first += int64_t{group.advances[step]} * geometry.block_columns;
    const uint8_t* indices = group.steps + step * static_cast<size_t>(geometry.step_bytes);
    for (size_t r = 0; r < rows; ++r) {
      const int column = columns[indices[geometry.lane_byte[r]]];
      if (column < 0) continue;
      const float weight = load_value(indices + geometry.weight_byte[r], geometry.weight_type, 0);
      if (!cursors[r].take(view, first + column, weight)) return false;
      ++found;
    }
  }
  return found == expected;
}

}  // namespace

WindowLayout pack_windows(const CondensedView& view, const WindowGeometry& geometry,
                          const Executor& executor) {
  const std::vector<int64_t> order = row_order(view);
  const size_t rows = static_cast<size_t>(geometry.rows);
  WindowLayout layout;
  layout.blocks = block_count(view, geometry);
  layout.groups.resize((order.size() + rows - 1) / rows);
  layout.outputs.resize(layout.groups.size() * rows);
  const size_t count = piece_count(view, layout.groups.size());
  layout.pieces.resize(count);
  std::vector<int64_t> weights(count);
  auto pack_piece = [&](size_t p) {
    const size_t first = chunk_begin(layout.groups.size(), count, p);
    const size_t end = chunk_begin(layout.groups.size(), count, p + 1);
    Packer packer(view, geometry, layout.blocks);
    packer.reserve((end - first) * rows * static_cast<size_t>(view.fan_in));
    for (size_t g = first; g < end; ++g)
      layout.groups[g] = packer.pack_group(order, g * rows, std::min(order.size(), (g + 1) * rows),
                                           layout.outputs.data() + g * rows);
    weights[p] = packer.weights();
    layout.pieces[p] = packer.take();
    const WindowPiece& piece = layout.pieces[p];
    size_t step = 0, remainder = 0;
    for (size_t g = first; g < end; ++g) {
      WindowGroup& group = layout.groups[g];
      group.steps = piece.steps.data() + step * layout.step_bytes(geometry);
      group.advances = piece.advances.data() + step;
      group.remainder = piece.remainder.data() + remainder;
      step += group.step_count;
      remainder += group.remainder_count;
    }
  };
  run_tasks(executor, count, pack_piece);
  layout.weights = std::accumulate(weights.begin(), weights.end(), int64_t{0});
  for (WindowGroup& group : layout.groups) {
    group.first_step = layout.steps;
    layout.steps += group.step_count;
    layout.remainders += group.remainder_count;
  }
  return layout;
}

bool holds_windows(const WindowLayout& layout, const WindowGeometry& geometry,
                   const CondensedView& view) {
  const size_t rows = static_cast<size_t>(geometry.rows);
  const std::vector<uint8_t> slots = window_slots(geometry);
  std::vector<int> columns(256, -1);
  for (size_t column = 0; column < slots.size(); ++column)
    columns[slots[column]] = static_cast<int>(column);
  std::vector<SourceRow> cursors(rows);
  int64_t stored = 0;
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    for (size_t r = 0; r < rows; ++r) {
      cursors[r] = {};
      const int32_t output = layout.outputs[g * rows + r];
      if (output < 0) continue;
      const int64_t row = stored_row(view, output);
      if (row < 0) return false;
      cursors[r] = source_row(view, row);
      ++stored;
    }
    if (!holds_group(layout.groups[g], geometry, columns, view, cursors)) return false;
  }
  return stored == view.active;
}

}  // namespace fanin
