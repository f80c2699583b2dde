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
// instructions. The window leaves entries behind if that fills more than this many lanes per entry.
constexpr int kLanesPerRemainder = 16;

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

// The distribution of a row's weights over the columns: the means of u, u^2 and u^3 with u from -1
// at the first column to 1 at the last.
struct Spread {
  int64_t row;
  float moment[3];
};

Spread spread(const CondensedView& view, int64_t row) {
  const int64_t fan_in = view.true_fan_in(row);
  const float scale = 2.0f / static_cast<float>(view.in_features);
  float sum[3] = {};
  for (int64_t j = 0; j < fan_in; ++j) {
    const float u = static_cast<float>(view.index(row, j)) * scale - 1.0f;
    sum[0] += u;
    sum[1] += u * u;
    sum[2] += u * u * u;
  }
  const float count = static_cast<float>(std::max<int64_t>(1, fan_in));
  return {row, {sum[0] / count, sum[1] / count, sum[2] / count}};
}

// Sorts rows by a moment, cuts them into `parts` of whole groups, and sorts each by the next.
void sort_rows(Spread* first, Spread* last, size_t group, size_t parts, int moment, int moments) {
  std::stable_sort(first, last, [moment](const Spread& a, const Spread& b) {
    return a.moment[moment] < b.moment[moment];
  });
  if (moment + 1 == moments) return;
  const size_t groups = (static_cast<size_t>(last - first) + group - 1) / group;
  const size_t count = std::min(parts, groups);
  for (size_t part = 0; part < count; ++part)
    sort_rows(first + chunk_begin(groups, count, part) * group,
              std::min(last, first + chunk_begin(groups, count, part + 1) * group), group, parts,
              moment + 1, moments);
}

// Rows that are sorted together at most: their outputs, which are then written out of order, stay
// in L1.
constexpr size_t kSortedRows = 8192;

// At least: sorting 256 rows of 768 -> 3072 at 90 % costs 5 % more lanes than sorting all, 128 rows
// 9 %.
constexpr size_t kLeastSortedRows = 256;

// The rows of one thread are sorted among themselves, so that no two threads write to the same line
// of y: with lines that all threads write to, 768 -> 3072 at batch 1 took 28 us on two threads and
// 22 on one (an Intel Xeon with AMX).
size_t sorted_rows(size_t active, size_t group, size_t threads) {
  if (threads == 1) return kSortedRows;
  const size_t groups = (active + group - 1) / group;
  return std::clamp((groups + threads - 1) / threads * group, kLeastSortedRows, kSortedRows);
}

// Stored rows in the order of packing, with at most `sorted` sorted together. Rows whose weights
// have a similar distribution lag behind or run ahead of a window together and so need fewer steps,
// even if distributions differ by chance only: this saves 3-4 % of the lanes of 3072 -> 768 at
// 80-90 %, 11 % of 768 -> 3072 at 90 %. Rows with local receptive fields (convolution-like masks)
// are sorted by the mean column alone, over all rows.
std::vector<int64_t> row_order(const CondensedView& view, size_t group, size_t sorted,
                               const Executor& executor) {
  const size_t active = static_cast<size_t>(view.active);
  std::vector<Spread> rows(active);
  const size_t chunks = (active + sorted - 1) / sorted;
  auto measure = [&](size_t chunk) {
    const size_t end = std::min(active, (chunk + 1) * sorted);
    for (size_t i = chunk * sorted; i < end; ++i) rows[i] = spread(view, static_cast<int64_t>(i));
  };
  run_tasks(executor, chunks, measure);
  double sum = 0, squares = 0;
  for (const Spread& row : rows) {
    sum += row.moment[0];
    squares += double{row.moment[0]} * row.moment[0];
  }
  const double count = static_cast<double>(std::max<size_t>(1, active));
  const double variance = squares / count - sum / count * (sum / count);
  const double by_chance = 1.0 / (3.0 * static_cast<double>(view.fan_in));
  if (variance > 4 * by_chance) {
    sort_rows(rows.data(), rows.data() + active, group, 1, 0, 1);
  } else {
    auto sort = [&](size_t chunk) {
      Spread* const first = rows.data() + chunk * sorted;
      const size_t size = std::min(sorted, active - chunk * sorted);
      const double groups = static_cast<double>((size + group - 1) / group);
      const int moments = groups < 12 ? 2 : 3;
      const auto parts = static_cast<size_t>(std::lround(std::pow(groups, 1.0 / moments)));
      sort_rows(first, first + size, group, std::max<size_t>(1, parts), 0, moments);
    };
    run_tasks(executor, chunks, sort);
  }
  std::vector<int64_t> order(active);
  for (size_t i = 0; i < active; ++i) order[i] = rows[i].row;
  return order;
}

// Converts columns to positions and back. The division by multiplication is exact for every index,
// which is below 2^31; a division instruction per weight would take a third of the packing time.
class Positions {
 public:
  explicit Positions(const WindowGeometry& geometry)
      : columns_(static_cast<uint32_t>(geometry.columns)),
        slots_(static_cast<uint32_t>(geometry.slots)),
        padding_(geometry.padding),
        factor_((uint64_t{1} << kShift) / columns_ + 1) {}

  uint32_t of(uint32_t column) const {
    const auto period = static_cast<uint32_t>(column * factor_ >> kShift);
    return column + period * (slots_ - columns_);
  }
  uint32_t column(uint32_t position) const {
    return position / slots_ * columns_ + position % slots_;
  }

  // The index byte that reads zero in a window that begins at `begin`.
  uint8_t padding(uint32_t begin) const {
    return columns_ == slots_ ? padding_
                              : static_cast<uint8_t>((columns_ + slots_ - begin % slots_) % slots_);
  }

 private:
  // column * columns_ < 2^37 makes it exact, and with columns_ > 16 the product has 64 bits at
  // most. A layout of 16 columns has no zeros between them, so that its period does not matter.
  static constexpr int kShift = 37;
  uint32_t columns_, slots_;
  uint8_t padding_;
  uint64_t factor_;
};

int64_t block_count(const CondensedView& view, const WindowGeometry& geometry) {
  const int64_t last = Positions(geometry).of(static_cast<uint32_t>(view.in_features - 1));
  return std::max<int64_t>(geometry.window_blocks, last / geometry.block_slots + 1);
}

// The rising columns of the entries of each stored row that the remainder has.
using Remainders = std::vector<std::vector<uint32_t>>;

// Packs one piece. With `remainders`, exactly those entries become the remainder; without, those
// whose windows would be nearly empty.
class Packer {
 public:
  Packer(const CondensedView& view, const WindowGeometry& geometry, int64_t blocks,
         const Remainders* remainders)
      : view_(view),
        geometry_(geometry),
        blocks_(blocks),
        remainders_(remainders),
        positions_(geometry),
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
      block = std::max(block, std::min<int64_t>(oldest / block_slots(), last_block()));
      while (slides(block)) drop_block(block++);
      while (block - at > kMaxAdvance) {
        at += kMaxAdvance;
        emit(kMaxAdvance, begin(at), false);  // an empty step in between
      }
      emit(static_cast<uint16_t>(block - at), begin(block), true);
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
  uint32_t block_slots() const { return static_cast<uint32_t>(geometry_.block_slots); }
  uint32_t begin(int64_t block) const { return static_cast<uint32_t>(block) * block_slots(); }
  // 64 bits, since the end of the last window can lie above every position.
  int64_t window_end(int64_t block) const {
    return (block + geometry_.window_blocks) * geometry_.block_slots;
  }

  uint32_t position(const SourceRow& cursor, int64_t at) const {
    return at < cursor.end ? positions_.of(static_cast<uint32_t>(view_.index(cursor.row, at)))
                           : kNone;
  }
  void load_next(int r) {
    SourceRow& cursor = cursors_[r];
    while (remainders_ != nullptr && cursor.at < cursor.end && is_remainder(cursor)) leave(r);
    next_[r] = position(cursor, cursor.at);
  }

  bool is_remainder(const SourceRow& cursor) const {
    const std::vector<uint32_t>& columns = (*remainders_)[static_cast<size_t>(cursor.row)];
    return std::binary_search(columns.begin(), columns.end(), column(cursor));
  }

  // Moves the next entry of a row to the remainder.
  void leave(int r) {
    SourceRow& cursor = cursors_[r];
    *remainder_.extend(1) = {column(cursor), static_cast<uint32_t>(r), weight(cursor)};
    ++cursor.at;
  }

  // Whether moving the window by one block fills enough lanes to justify the entries left behind.
  bool slides(int64_t block) const {
    if (block >= last_block()) return false;
    const uint32_t new_begin = begin(block + 1);
    const int64_t end = window_end(block), new_end = window_end(block + 1);
    int gain = 0, left = 0;
    for (int r = 0; r < geometry_.rows; ++r) {
      const SourceRow& cursor = cursors_[r];
      uint32_t next = next_[r];
      gain -= next < end;
      for (int64_t j = cursor.at; next < new_begin; ++left) next = position(cursor, ++j);
      gain += next < new_end;
    }
    if (remainders_ != nullptr && left > 0) return false;
    return gain > 0 && gain > left * kLanesPerRemainder;
  }

  // Moves the entries of a block that the window leaves to the remainder.
  void drop_block(int64_t block) {
    const uint32_t new_begin = begin(block + 1);
    for (int r = 0; r < geometry_.rows; ++r)
      for (; next_[r] < new_begin; load_next(r)) leave(r);
  }

  uint32_t column(const SourceRow& cursor) const {
    return static_cast<uint32_t>(view_.index(cursor.row, cursor.at));
  }
  float weight(const SourceRow& cursor) const { return view_.value(cursor.row, cursor.at); }

  // A float32 layout accepts every view, one of 16-bit weights only views of the same type.
  void store_weight(const SourceRow& cursor, uint8_t* to) const {
    if (geometry_.weight_type == ValueType::kFloat32) {
      const float value = weight(cursor);
      std::memcpy(to, &value, sizeof(value));
    } else {
      const auto* bits = static_cast<const uint16_t*>(view_.values);
      std::memcpy(to, bits + cursor.row * view_.fan_in + cursor.at, sizeof(*bits));
    }
  }

  // Appends a step with the window at `first`. If `takes`, it has the next entry of every row that
  // has one in the window.
  void emit(uint16_t advance, uint32_t first, bool takes) {
    const size_t rows = static_cast<size_t>(geometry_.rows);
    const auto window = static_cast<uint32_t>(geometry_.window_slots());
    const uint8_t padding = positions_.padding(first);
    uint8_t* indices = steps_.extend(static_cast<size_t>(geometry_.step_bytes));
    for (size_t r = 0; r < rows; ++r) {
      uint8_t slot = padding;
      // kNone is never in a window: it is above every position by more than a window.
      if (takes && next_[r] != kNone && next_[r] - first < window) {
        slot = static_cast<uint8_t>(next_[r] - first);
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
  const Remainders* remainders_;
  Positions positions_;
  std::vector<SourceRow> cursors_;
  std::vector<uint32_t> next_;  // position of each cursor, kNone at its end
  int64_t weights_ = 0;
  GrowingBuffer<uint8_t> steps_;
  GrowingBuffer<uint16_t> advances_;
  GrowingBuffer<WindowRemainder> remainder_;
};

// Whether the lanes and the remainder of a group equal the rows of the cursors. The entries of a
// layout are distinct, so it is enough that each is in its row and none is missing.
bool holds_group(const WindowGroup& group, const WindowGeometry& geometry,
                 const CondensedView& view, std::vector<SourceRow> cursors) {
  const Positions positions(geometry);
  const size_t rows = static_cast<size_t>(geometry.rows);
  size_t found = group.remainder_count, expected = 0;
  for (size_t r = 0; r < rows; ++r) expected += static_cast<size_t>(cursors[r].end);
  std::vector<SourceRow> left = cursors;
  for (size_t i = 0; i < group.remainder_count; ++i) {
    const WindowRemainder& entry = group.remainder[i];
    if (!left[entry.row].take(view, entry.column, entry.weight)) return false;
  }
  uint32_t first = 0;  // position of the window
  for (size_t step = 0; step < group.step_count; ++step) {
    first += group.advances[step] * static_cast<uint32_t>(geometry.block_slots);
    const uint8_t padding = positions.padding(first);
    const uint8_t* indices = group.steps + step * static_cast<size_t>(geometry.step_bytes);
    for (size_t r = 0; r < rows; ++r) {
      const uint8_t slot = indices[geometry.lane_byte[r]];
      if (slot == padding) continue;
      const float weight = load_value(indices + geometry.weight_byte[r], geometry.weight_type, 0);
      if (!cursors[r].take(view, positions.column(first + slot), weight)) return false;
      ++found;
    }
  }
  return found == expected;
}

WindowLayout pack_in_order(const CondensedView& view, const WindowGeometry& geometry,
                           const std::vector<int64_t>& order, const Remainders* remainders,
                           const Executor& executor) {
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
    Packer packer(view, geometry, layout.blocks, remainders);
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

Remainders remainders_of(const WindowLayout& layout, const CondensedView& view, size_t rows) {
  Remainders columns(static_cast<size_t>(view.active));
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    const WindowGroup& group = layout.groups[g];
    for (size_t i = 0; i < group.remainder_count; ++i) {
      const WindowRemainder& entry = group.remainder[i];
      const int64_t row = stored_row(view, layout.outputs[g * rows + entry.row]);
      columns[static_cast<size_t>(row)].push_back(entry.column);
    }
  }
  return columns;
}

}  // namespace

WindowLayout pack_windows(const CondensedView& view, const WindowGeometry& geometry,
                          const Executor& executor) {
  const auto rows = static_cast<size_t>(geometry.rows);
  const auto order = [&](size_t threads) {
    const size_t sorted = sorted_rows(static_cast<size_t>(view.active), rows, threads);
    return row_order(view, rows, sorted, executor);
  };
  const std::vector<int64_t> alone = order(1), own = order(executor.concurrency());
  WindowLayout layout = pack_in_order(view, geometry, alone, nullptr, executor);
  if (own == alone) return layout;
  // Entries of the remainder are added last, so they have to be the same for any number of threads.
  const Remainders remainders = remainders_of(layout, view, rows);
  layout = {};
  return pack_in_order(view, geometry, own, &remainders, executor);
}

bool holds_windows(const WindowLayout& layout, const WindowGeometry& geometry,
                   const CondensedView& view) {
  const size_t rows = static_cast<size_t>(geometry.rows);
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
    if (!holds_group(layout.groups[g], geometry, view, cursors)) return false;
  }
  return stored == view.active;
}

}  // namespace fanin
