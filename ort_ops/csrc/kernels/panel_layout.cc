#include "kernels/panel_layout.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/divide_up.h"
#include "core/parallel.h"
#include "kernels/source_row.h"

namespace fanin {
namespace {

// The most rows of a block: many, so that sorting finds rows of equal counts for a group (padding
// under 1 %) and groups of equal counts follow each other; 768 are 1-2 % faster than 384, but their
// sums leave less of L2 to weights.
constexpr int64_t kBlockRows = 384;

// The least, if several threads share the layer: blocks of 48 rows have 5 % padding.
constexpr int64_t kMinSharedRows = 32;

// Convolutions with so few filters have large images, with enough tiles for all threads.
constexpr int64_t kWholeFilters = 64;

// The cost of a row besides its weights, in units of a weight: see kRowVisit in panel_engine.cc.
constexpr int64_t kRowCost = 3;

// The number of threads or a multiple of it, so that threads get equal work in a single tile, and
// four if two threads share a tile; less if there are few rows.
int64_t block_count(int64_t outputs, PanelEnd end, size_t threads) {
  const int64_t count = (outputs + kBlockRows - 1) / kBlockRows;
  const bool is_conv = end == PanelEnd::kRegisters;
  if (threads == 1 || (is_conv && outputs <= kWholeFilters)) return count;
  const int64_t wanted = std::max<int64_t>(count, is_conv ? 1 : 4);
  const int64_t multiple = static_cast<int64_t>(threads);
  return std::max(
      count, std::min((wanted + multiple - 1) / multiple * multiple, outputs / kMinSharedRows));
}

// Cuts blocks of about the same cost; all but the last consist of whole groups.
std::vector<PanelBlock> make_blocks(const CondensedView& view, int64_t segments, PanelEnd end,
                                    size_t threads) {
  const int64_t outputs = view.out_features;
  std::vector<int64_t> before{0};  // cost of the rows before each
  for (int64_t o = 0; o < outputs; ++o) {
    const int64_t row = stored_row(view, o);
    before.push_back(before.back() + kRowCost * segments + (row < 0 ? 0 : view.true_fan_in(row)));
  }
  const int64_t count = block_count(outputs, end, threads);
  std::vector<PanelBlock> blocks;
  for (int64_t first = 0, number = 1; first < outputs; ++number) {
    int64_t rows = outputs - first;
    if (number < count) {
      const double share = static_cast<double>(number) / static_cast<double>(count);
      const auto cost = static_cast<int64_t>(share * static_cast<double>(before.back()));
      const int64_t cut = std::lower_bound(before.begin(), before.end(), cost) - before.begin();
      const int64_t groups = (cut - first + kPanelGroupRows / 2) / kPanelGroupRows;
      rows = std::min(rows, std::max<int64_t>(groups, 1) * kPanelGroupRows);
    }
    rows = std::min(rows, kBlockRows);
    blocks.push_back({first, rows, static_cast<size_t>(first) + blocks.size()});
    first += rows;
  }
  return blocks;
}

// The entries of a stored row that are still to be packed or found, as the panel has them.
class FloatCursor {
 public:
  static constexpr size_t kPerWeight = 1;
  static constexpr int64_t kOffsets = kPanelOffsetsPerColumn;

  FloatCursor() = default;
  FloatCursor(const CondensedView& view, int64_t row) : view_(&view), row_(source_row(view, row)) {}

  bool done() const { return row_.at == row_.end; }
  int64_t column() const { return view_->index(row_.row, row_.at); }
  uint32_t bits() const {
    const float value = view_->value(row_.row, row_.at);
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
  }
  int64_t weights() const { return 1; }
  void next() { ++row_.at; }

 private:
  const CondensedView* view_ = nullptr;
  SourceRow row_;
};

// A half of a pair: the next entry of the segment is its other half.
class HalfCursor : public FloatCursor {
 public:
  static constexpr size_t kPerWeight = 2;
  static constexpr int64_t kOffsets = kPairOffsetsPerColumn;

  using FloatCursor::FloatCursor;
  uint32_t bits() const { return FloatCursor::bits() >> 16; }
};

// Quads without a weight other than 0 are left out.
class QuadCursor {
 public:
  static constexpr size_t kPerWeight = 1;
  static constexpr int64_t kOffsets = kPanelOffsetsPerColumn;

  QuadCursor() = default;
  QuadCursor(const CondensedView& view, int64_t row) : view_(&view), row_(source_row(view, row)) {
    next();
  }

  bool done() const { return weights_ == 0; }
  int64_t column() const { return quad_; }
  uint32_t bits() const { return bits_; }
  int64_t weights() const { return weights_; }

  void next() {
    weights_ = 0;
    bits_ = 0;
    for (; row_.at < row_.end; ++row_.at) {
      const auto weight =
          static_cast<const int8_t*>(view_->values)[row_.row * view_->fan_in + row_.at];
      if (weight == 0) continue;
      const int64_t column = view_->index(row_.row, row_.at);
      if (weights_ > 0 && column / 4 != quad_) return;
      quad_ = column / 4;
      ++weights_;
      std::memcpy(reinterpret_cast<char*>(&bits_) + column % 4, &weight, 1);
    }
  }

 private:
  const CondensedView* view_ = nullptr;
  SourceRow row_;
  int64_t quad_ = 0;
  uint32_t bits_ = 0;
  int64_t weights_ = 0;  // other than 0; none past the last quad
};

// Cursors of a block's outputs; those of ablated ones are done.
template <typename Cursor>
std::vector<Cursor> block_rows(const CondensedView& view, const PanelBlock& block) {
  std::vector<Cursor> rows(static_cast<size_t>(block.outputs));
  for (int64_t o = 0; o < block.outputs; ++o) {
    const int64_t row = stored_row(view, block.first_output + o);
    if (row >= 0) rows[static_cast<size_t>(o)] = Cursor(view, row);
  }
  return rows;
}

// Packs one piece.
template <typename Cursor>
class Packer {
 public:
  Packer(const CondensedView& view, const PanelLayout& layout, PanelEnd end)
      : view_(view), layout_(layout), end_(end) {}

  // Packs and counts the parts of a block, and writes the biases.
  void pack_block(PanelBlock& block, float* bias) {
    const size_t weights = weights_.size(), places = rows_.size();
    std::vector<Cursor> rows = block_rows<Cursor>(view_, block);
    if (view_.bias) std::copy_n(view_.bias + block.first_output, block.outputs, bias);
    for (int64_t segment = 0; segment < layout_.segments; ++segment) pack_part(rows, segment);
    block.padded_weights = weights_.size() - weights;
    block.padded_rows = rows_.size() - places;
  }

  void reserve(size_t weights) {
    weights_.reserve(weights + weights / 16);
    offsets_.reserve(kPer * (weights + weights / 16));
  }

  // The piece, and its parts in order.
  PanelPiece take(PanelPart* parts) {
    PanelPiece piece{weights_.take(), offsets_.take(), rows_.take(), runs_.take()};
    for (const PartBegin& begin : begins_)
      *parts++ = {piece.weights.data() + begin.weights, piece.offsets.data() + kPer * begin.weights,
                  piece.rows.data() + begin.rows, piece.runs.data() + begin.runs, begin.run_count};
    return piece;
  }

  int64_t true_weights() const { return true_weights_; }

 private:
  static constexpr size_t kPer = Cursor::kPerWeight;

  // Where a part begins, before the arrays have their final place.
  struct PartBegin {
    size_t weights, rows, runs, run_count;
  };

  // A row's entries in a segment.
  struct Inside {
    Cursor from;
    size_t count;
  };

  // Packs the rows' entries in the segment.
  void pack_part(std::vector<Cursor>& rows, int64_t segment) {
    const int64_t first_column = layout_.first_column(segment);
    const int64_t end_column = first_column + layout_.segment_columns;
    std::vector<Inside> inside;
    inside.reserve(rows.size());
    for (Cursor& row : rows) {
      inside.push_back({row, 0});
      for (; !row.done() && row.column() < end_column; row.next()) {
        ++inside.back().count;
        true_weights_ += row.weights();
      }
    }
    std::vector<size_t> order(rows.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return inside[a].count > inside[b].count; });

    PartBegin begin{weights_.size(), rows_.size(), runs_.size(), 0};
    PanelRun* run = nullptr;
    for (size_t first = 0; first < rows.size(); first += kPanelGroupRows) {
      const size_t steps = (inside[order[first]].count + kPer - 1) / kPer;
      // Rows without weights appear in the first segment, for their bias, and in the one after
      // which outputs are written.
      const bool leaves = end_ == PanelEnd::kRegisters && segment + 1 == layout_.segments;
      if (steps == 0 && segment > 0 && !leaves) break;
      if (run == nullptr || run->steps != steps) {
        run = runs_.extend(1);
        run->steps = static_cast<uint32_t>(steps);
        ++begin.run_count;
      }
      ++run->groups;
      const size_t size = std::min<size_t>(kPanelGroupRows, rows.size() - first);
      uint16_t* places = rows_.extend(kPanelGroupRows);
      for (size_t i = 0; i < kPanelGroupRows; ++i)
        places[i] = static_cast<uint16_t>(i < size ? order[first + i] : rows.size());
      uint32_t* weights = weights_.extend(steps * kPanelGroupRows);
      uint16_t* offsets = offsets_.extend(steps * kPanelGroupRows * kPer);
      for (size_t i = 0; i < size; ++i) {
        const Inside& row = inside[order[first + i]];
        Cursor entry = row.from;
        for (size_t n = 0; n < row.count; ++n, entry.next()) {
          const size_t to = n / kPer * kPanelGroupRows + i, half = n % kPer;
          weights[to] |= entry.bits() << 16 * half;
          offsets[to * kPer + half] =
              static_cast<uint16_t>((entry.column() - first_column + 1) * Cursor::kOffsets);
        }
      }
    }
    begins_.push_back(begin);
  }

  const CondensedView& view_;
  const PanelLayout& layout_;
  PanelEnd end_;
  int64_t true_weights_ = 0;
  GrowingBuffer<uint32_t> weights_;
  GrowingBuffer<uint16_t> offsets_;
  GrowingBuffer<uint16_t> rows_;
  GrowingBuffer<PanelRun> runs_;
  std::vector<PartBegin> begins_;
};

// Fills blocks, pieces and parts of a layout whose segments and blocks are cut.
template <typename Cursor>
void pack_blocks(const CondensedView& view, PanelEnd end, const Executor& executor,
                 PanelLayout& layout) {
  const size_t blocks = layout.blocks.size(), segments = static_cast<size_t>(layout.segments);
  const size_t count = piece_count(view, blocks);
  layout.pieces.resize(count);
  std::vector<int64_t> true_weights(count);
  auto pack_piece = [&](size_t p) {
    const size_t first = chunk_begin(blocks, count, p), last = chunk_begin(blocks, count, p + 1);
    Packer<Cursor> packer(view, layout, end);
    packer.reserve(static_cast<size_t>(view.active * view.fan_in) / count);
    for (size_t b = first; b < last; ++b)
      packer.pack_block(layout.blocks[b], layout.bias.data() + layout.blocks[b].bias);
    layout.pieces[p] = packer.take(layout.parts.data() + first * segments);
    true_weights[p] = packer.true_weights();
  };
  run_tasks(executor, count, pack_piece);
  layout.true_weights = std::accumulate(true_weights.begin(), true_weights.end(), int64_t{0});
  for (const PanelPiece& piece : layout.pieces) layout.padded_weights += piece.weights.size();
}

// Whether every entry of the part is the next one of its row; moves the rows on.
template <typename Cursor>
bool holds_part(const PanelPart& part, int64_t first_column, std::vector<Cursor>& rows) {
  const uint32_t* weights = part.weights;
  const uint16_t* offsets = part.offsets;
  const uint16_t* places = part.rows;
  for (const PanelRun* run = part.runs; run != part.runs + part.run_count; ++run)
    for (uint32_t group = 0; group < run->groups; ++group, places += kPanelGroupRows)
      for (uint32_t step = 0; step < run->steps; ++step)
        for (int i = 0; i < kPanelGroupRows; ++i, ++weights)
          for (size_t half = 0; half < Cursor::kPerWeight; ++half, ++offsets) {
            if (*offsets == 0) continue;
            Cursor& row = rows[places[i]];
            const int64_t column = first_column + *offsets / Cursor::kOffsets - 1;
            const uint32_t bits =
                Cursor::kPerWeight == 1 ? *weights : *weights >> 16 * half & 0xffff;
            if (row.done() || row.column() != column || row.bits() != bits) return false;
            row.next();
          }
  return true;
}

template <typename Cursor>
bool holds_blocks(const PanelLayout& layout, const CondensedView& view) {
  for (size_t b = 0; b < layout.blocks.size(); ++b) {
    const PanelBlock& block = layout.blocks[b];
    if (view.bias && std::memcmp(layout.bias.data() + block.bias, view.bias + block.first_output,
                                 static_cast<size_t>(block.outputs) * sizeof(float)) != 0)
      return false;
    std::vector<Cursor> rows = block_rows<Cursor>(view, block);
    for (int64_t segment = 0; segment < layout.segments; ++segment)
      if (!holds_part(
              layout.parts[b * static_cast<size_t>(layout.segments) + static_cast<size_t>(segment)],
              layout.first_column(segment), rows))
        return false;
    for (const Cursor& row : rows)
      if (!row.done()) return false;
  }
  return true;
}

}  // namespace

int64_t panel_columns(const CondensedView& view, PanelEntry entry) {
  return entry == PanelEntry::kQuad ? divide_up(view.in_features, 4) : view.in_features;
}

size_t column_floats(PanelEntry entry, int width) {
  return static_cast<size_t>(entry == PanelEntry::kPair ? width / 2 : width);
}

int64_t segment_columns(const CondensedView& view, PanelEntry entry, double steps, int64_t least,
                        int64_t most) {
  double density = std::min(
      1.0, std::max(1.0, static_cast<double>(view.fan_in)) / static_cast<double>(view.in_features));
  // A quad is empty if its four columns are.
  if (entry == PanelEntry::kQuad) density = 1.0 - std::pow(1.0 - density, 4);
  return std::clamp(static_cast<int64_t>(steps / density), least, most);
}

PanelLayout pack_panel(const CondensedView& view, PanelEntry entry, int64_t segment_columns,
                       PanelEnd end, const Executor& executor) {
  PanelLayout layout;
  layout.entry = entry;
  const int64_t columns = panel_columns(view, entry);
  layout.segments = divide_up(columns, segment_columns);
  layout.segment_columns = divide_up(columns, layout.segments);
  if (entry == PanelEntry::kFloat && view.value_type == ValueType::kInt8) {
    layout.segment_columns = divide_up(layout.segment_columns, 4) * 4;
    layout.segments = divide_up(columns, layout.segment_columns);
  }
  layout.blocks = make_blocks(view, layout.segments, end, executor.concurrency());
  for (const PanelBlock& block : layout.blocks)
    layout.block_rows = std::max(layout.block_rows, block.outputs);
  layout.parts.resize(layout.blocks.size() * static_cast<size_t>(layout.segments));
  layout.bias.resize(static_cast<size_t>(view.out_features) + layout.blocks.size());
  switch (entry) {
    case PanelEntry::kFloat:
      pack_blocks<FloatCursor>(view, end, executor, layout);
      break;
    case PanelEntry::kPair:
      pack_blocks<HalfCursor>(view, end, executor, layout);
      layout.padded_weights *= 2;
      break;
    case PanelEntry::kQuad:
      pack_blocks<QuadCursor>(view, end, executor, layout);
      layout.padded_weights *= 4;
      break;
  }
  return layout;
}

LayoutInfo panel_info(const PanelLayout& layout) {
  size_t bytes = layout.parts.size() * sizeof(PanelPart) +
                 layout.blocks.size() * sizeof(PanelBlock) + layout.bias.size() * sizeof(float);
  for (const PanelPiece& piece : layout.pieces)
    bytes +=
        piece.weights.bytes() + piece.offsets.bytes() + piece.rows.bytes() + piece.runs.bytes();
  const double padding = layout.true_weights == 0 ? 1.0
                                                  : static_cast<double>(layout.padded_weights) /
                                                        static_cast<double>(layout.true_weights);
  return {static_cast<int64_t>(bytes), padding, 0.0};
}

bool holds_panel(const PanelLayout& layout, const CondensedView& view) {
  switch (layout.entry) {
    case PanelEntry::kPair:
      return view.value_type == ValueType::kBfloat16 && holds_blocks<HalfCursor>(layout, view);
    case PanelEntry::kQuad:
      return holds_blocks<QuadCursor>(layout, view);
    default:
      return holds_blocks<FloatCursor>(layout, view);
  }
}

}  // namespace fanin
