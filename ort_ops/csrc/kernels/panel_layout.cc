#include "kernels/panel_layout.h"

#include <algorithm>
#include <numeric>

namespace fanin {
namespace {

// Rows of a block: enough that sorting finds rows of equal counts for a group (padding 1-2 %), few
// enough that blocks can be shared out to threads. A multiple of four blocks divides evenly.
constexpr int64_t kBlockRows = 192;

std::vector<PanelBlock> make_blocks(int64_t out_features) {
  int64_t count = (out_features + kBlockRows - 1) / kBlockRows;
  if (count > 1) count = (count + 3) / 4 * 4;
  const int64_t rows = (out_features + count - 1) / count;
  std::vector<PanelBlock> blocks;
  for (int64_t first = 0; first < out_features; first += rows)
    blocks.push_back(
        {first, std::min(rows, out_features - first), static_cast<size_t>(first) + blocks.size()});
  return blocks;
}

// Where a part begins, before the arrays have their final place.
struct PartBegin {
  size_t weights, rows, runs, run_count;
};

class Packer {
 public:
  Packer(const CondensedView& view, int64_t segment_columns) : view_(view) {
    layout_.segments = (view.in_features + segment_columns - 1) / segment_columns;
    layout_.segment_columns = (view.in_features + layout_.segments - 1) / layout_.segments;
    layout_.blocks = make_blocks(view.out_features);
  }

  PanelLayout pack() {
    for (const PanelBlock& block : layout_.blocks) pack_block(block);
    layout_.weights = AlignedBuffer<float>(weights_.size());
    std::copy(weights_.begin(), weights_.end(), layout_.weights.data());
    layout_.offsets = AlignedBuffer<uint16_t>(offsets_.size());
    std::copy(offsets_.begin(), offsets_.end(), layout_.offsets.data());
    for (const PartBegin& begin : begins_)
      layout_.parts.push_back(
          {layout_.weights.data() + begin.weights, layout_.offsets.data() + begin.weights,
           layout_.rows.data() + begin.rows, layout_.runs.data() + begin.runs, begin.run_count});
    return std::move(layout_);
  }

 private:
  // Entries [at, end) of a stored row; an ablated output has none.
  struct Entries {
    int64_t row = 0, at = 0, end = 0;
  };

  void pack_block(const PanelBlock& block) {
    std::vector<Entries> entries(static_cast<size_t>(block.outputs));
    for (int64_t o = 0; o < block.outputs; ++o) {
      layout_.bias.push_back(view_.bias[block.first_output + o]);
      if (stored_ == view_.active || view_.rows[stored_] != block.first_output + o) continue;
      entries[o] = {stored_, 0, view_.true_fan_in(stored_)};
      layout_.true_weights += entries[o].end;
      ++stored_;
    }
    layout_.bias.push_back(0.0f);
    for (int64_t segment = 0; segment < layout_.segments; ++segment) pack_part(entries, segment);
  }

  void pack_part(std::vector<Entries>& entries, int64_t segment) {
    const int64_t first_column = layout_.first_column(segment);
    const int64_t end_column = first_column + layout_.segment_columns;
    const size_t rows = entries.size();
    std::vector<Entries> inside(rows);
    for (size_t r = 0; r < rows; ++r) {
      Entries& row = entries[r];
      inside[r] = row;
      while (row.at < row.end && view_.index(row.row, row.at) < end_column) ++row.at;
      inside[r].end = row.at;
    }
    const auto count = [&](size_t r) { return static_cast<size_t>(inside[r].end - inside[r].at); };
    std::vector<size_t> order(rows);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return count(a) > count(b); });

    PartBegin begin{weights_.size(), layout_.rows.size(), layout_.runs.size(), 0};
    for (size_t first = 0; first < rows; first += kPanelGroupRows) {
      const size_t steps = count(order[first]);
      // Rows without weights appear once, in the first segment, for their bias.
      if (steps == 0 && segment > 0) break;
      if (begin.run_count == 0 || layout_.runs.back().steps != steps) {
        layout_.runs.push_back({static_cast<uint32_t>(steps), 0});
        ++begin.run_count;
      }
      ++layout_.runs.back().groups;
      const size_t size = std::min<size_t>(kPanelGroupRows, rows - first);
      for (size_t i = 0; i < kPanelGroupRows; ++i)
        layout_.rows.push_back(static_cast<uint16_t>(i < size ? order[first + i] : rows));
      const size_t at = weights_.size();
      weights_.resize(at + steps * kPanelGroupRows, 0.0f);
      offsets_.resize(at + steps * kPanelGroupRows, 0);
      for (size_t i = 0; i < size; ++i) {
        const Entries& row = inside[order[first + i]];
        for (int64_t j = row.at; j < row.end; ++j) {
          const size_t to = at + static_cast<size_t>(j - row.at) * kPanelGroupRows + i;
          weights_[to] = view_.value(row.row, j);
          offsets_[to] = static_cast<uint16_t>((view_.index(row.row, j) - first_column + 1) *
                                               kPanelOffsetsPerColumn);
        }
      }
    }
    begins_.push_back(begin);
  }

  const CondensedView& view_;
  PanelLayout layout_;
  int64_t stored_ = 0;  // next stored row
  std::vector<float> weights_;
  std::vector<uint16_t> offsets_;
  std::vector<PartBegin> begins_;
};

}  // namespace

PanelLayout pack_panel(const CondensedView& view, int64_t segment_columns) {
  return Packer(view, segment_columns).pack();
}

}  // namespace fanin
