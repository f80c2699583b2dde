#include "kernels/window_layout.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

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

// Entries of one row that are not placed yet.
struct Cursor {
  int64_t row = 0;
  int64_t at = 0;
  int64_t end = 0;
};

class Packer {
 public:
  Packer(const CondensedView& view, const WindowGeometry& geometry)
      : view_(view), geometry_(geometry), cursors_(geometry.rows), next_(geometry.rows) {
    const int64_t columns = geometry.block_columns;
    layout_.blocks =
        std::max<int64_t>(geometry.window_blocks, (view.in_features + columns - 1) / columns);
  }

  WindowLayout pack() {
    const std::vector<int64_t> order = row_order(view_);
    for (size_t first = 0; first < order.size(); first += geometry_.rows)
      pack_group(order, first, std::min(order.size(), first + geometry_.rows));
    layout_.steps = AlignedBuffer<uint8_t>(steps_.size());
    if (!steps_.empty()) std::memcpy(layout_.steps.data(), steps_.data(), steps_.size());
    layout_.advances = AlignedBuffer<uint16_t>(advances_.size());
    std::copy(advances_.begin(), advances_.end(), layout_.advances.data());
    return std::move(layout_);
  }

 private:
  void pack_group(const std::vector<int64_t>& order, size_t first, size_t last) {
    WindowGroup group{advances_.size(), 0, layout_.remainder.size(), 0, true};
    for (int r = 0; r < geometry_.rows; ++r) {
      const bool stored = first + r < last;
      const int64_t row = stored ? order[first + r] : 0;
      cursors_[r] = {row, 0, stored ? view_.true_fan_in(row) : 0};
      layout_.weights += cursors_[r].end;
      layout_.outputs.push_back(stored ? view_.rows[row] : -1);
      group.contiguous &= !stored || view_.rows[row] == view_.rows[order[first]] + r;
      load_next(r);
    }
    int64_t at = 0;  // block that the kernel's window starts at
    for (int64_t block = 0;;) {
      const uint32_t oldest = *std::min_element(next_.begin(), next_.end());
      if (oldest == kNone) break;
      block = std::max(block, std::min<int64_t>(oldest / geometry_.block_columns, last_block()));
      while (slides(block)) drop_block(block++);
      for (; block - at > std::numeric_limits<uint16_t>::max(); at += advances_.back())
        emit(std::numeric_limits<uint16_t>::max(), kNone);  // an empty step in between
      emit(static_cast<uint16_t>(block - at), begin(block));
      at = block;
    }
    group.step_count = advances_.size() - group.step_begin;
    group.remainder_count = layout_.remainder.size() - group.remainder_begin;
    layout_.groups.push_back(group);
  }

  int64_t last_block() const { return layout_.blocks - geometry_.window_blocks; }
  uint32_t begin(int64_t block) const {
    return static_cast<uint32_t>(block * geometry_.block_columns);
  }
  // As 64 bits: the end of the last window can lie above every index.
  int64_t window_end(int64_t block) const {
    return (block + geometry_.window_blocks) * geometry_.block_columns;
  }

  void load_next(int r) {
    const Cursor& cursor = cursors_[r];
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
      const Cursor& cursor = cursors_[r];
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
      for (Cursor& cursor = cursors_[r]; next_[r] < new_begin; load_next(r)) {
        layout_.remainder.push_back({next_[r], static_cast<uint32_t>(r), weight(cursor)});
        ++cursor.at;
      }
  }

  float weight(const Cursor& cursor) const { return view_.value(cursor.row, cursor.at); }

  // A layout of float32 takes every view, one of 16-bit weights only views of the same type.
  void store_weight(const Cursor& cursor, uint8_t* to) const {
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
    const size_t start = steps_.size();
    steps_.resize(start + layout_.step_bytes(geometry_), 0);
    uint8_t* indices = steps_.data() + start;
    const uint32_t columns = static_cast<uint32_t>(geometry_.block_columns);
    for (size_t r = 0; r < rows; ++r) {
      uint8_t slot = geometry_.padding;
      // kNone is never in a window: it is above every column by more than a window.
      if (first_column != kNone && next_[r] != kNone &&
          next_[r] - first_column < geometry_.window_blocks * columns) {
        const uint32_t local = next_[r] - first_column;
        slot = static_cast<uint8_t>(local / columns * geometry_.block_slots + local % columns);
        store_weight(cursors_[r], indices + geometry_.weight_byte[r]);
        ++cursors_[r].at;
        load_next(static_cast<int>(r));
      }
      indices[geometry_.lane_byte[r]] = slot;
    }
    advances_.push_back(advance);
  }

  const CondensedView& view_;
  const WindowGeometry& geometry_;
  WindowLayout layout_;
  std::vector<Cursor> cursors_;
  std::vector<uint32_t> next_;  // column of each cursor, kNone at its end
  std::vector<uint8_t> steps_;
  std::vector<uint16_t> advances_;
};

}  // namespace

WindowLayout pack_windows(const CondensedView& view, const WindowGeometry& geometry) {
  return Packer(view, geometry).pack();
}

}  // namespace fanin
