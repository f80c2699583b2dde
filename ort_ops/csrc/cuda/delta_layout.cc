#include "cuda/delta_layout.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/divide_up.h"
#include "core/parallel.h"

namespace fanin::cuda {
namespace {

// Steps without a weight between neighboring columns of a chain.
int64_t skips(int64_t gap) { return (gap - 1) / kDeltaStep; }

struct Row {
  int64_t stored = 0;
  int64_t count = 0;
};

// A part of a row's weights.
struct Chain {
  int64_t row = 0;
  int64_t first = 0;
  int64_t last = 0;
};

class Packer {
 public:
  Packer(const CondensedView& view, const DeltaCut& cut, std::vector<Row> rows)
      : view_(view),
        cut_(cut),
        rows_(std::move(rows)),
        value_bytes_(static_cast<int64_t>(value_bytes(view.value_type))),
        entries_(delta_entries(value_bytes_)) {}

  int64_t tiles() const { return divide_up(active(), cut_.rows); }
  int64_t active() const { return static_cast<int64_t>(rows_.size()); }
  int64_t entries() const { return entries_; }
  int64_t chains_of(int64_t tile) const {
    return std::min(cut_.rows, active() - tile * cut_.rows) * cut_.parts;
  }

  // Chunks of the longest chain of a tile.
  int64_t steps_of(int64_t tile) const {
    int64_t longest = 0;
    for (int64_t i = 0; i < chains_of(tile); ++i)
      longest = std::max(longest, length(chain(tile, i)));
    return divide_up(longest, entries_);
  }

  // Writes a tile's chains to its chunks and starts, which are zero.
  void write(int64_t tile, unsigned char* values, unsigned char* deltas, uint16_t* starts) const {
    const int64_t chains = chains_of(tile);
    for (int64_t i = 0; i < chains; ++i) {
      const Chain one = chain(tile, i);
      // One more than the column before the first step, which is 1. A chain without weights stays
      // at column 0, since x is read even there.
      starts[i] = one.first < one.last ? static_cast<uint16_t>(view_.index(one.row, one.first)) : 1;
      int64_t slot = 0;
      const auto step = [&](int64_t delta) {
        const int64_t at = (slot / entries_ * chains + i) * entries_ + slot % entries_;
        deltas[at] = static_cast<unsigned char>(delta);
        ++slot;
        return values + at * value_bytes_;
      };
      for (int64_t entry = one.first; entry < one.last; ++entry) {
        int64_t gap = gap_before(one, entry);
        for (; gap > kDeltaStep; gap -= kDeltaStep) step(kDeltaStep);
        copy_value(one.row * view_.fan_in + entry, step(gap));
      }
    }
  }

 private:
  // A +0 becomes -0: the other one stands for steps without a weight.
  void copy_value(int64_t from, unsigned char* to) const {
    const auto bytes = static_cast<size_t>(value_bytes_);
    std::memcpy(to, static_cast<const unsigned char*>(view_.values) + from * value_bytes_, bytes);
    if (std::all_of(to, to + bytes, [](unsigned char byte) { return byte == 0; }))
      to[bytes - 1] = 0x80;
  }

  Chain chain(int64_t tile, int64_t number) const {
    const int64_t rows = chains_of(tile) / cut_.parts;
    const Row& row = rows_[static_cast<size_t>(tile * cut_.rows + number % rows)];
    const int64_t part = number / rows;
    return {row.stored, row.count * part / cut_.parts, row.count * (part + 1) / cut_.parts};
  }

  int64_t gap_before(const Chain& chain, int64_t entry) const {
    return entry == chain.first ? 1
                                : view_.index(chain.row, entry) - view_.index(chain.row, entry - 1);
  }

  int64_t length(const Chain& chain) const {
    int64_t slots = chain.last - chain.first;
    for (int64_t entry = chain.first; entry < chain.last; ++entry)
      slots += skips(gap_before(chain, entry));
    return slots;
  }

  const CondensedView& view_;
  const DeltaCut cut_;
  const std::vector<Row> rows_;
  const int64_t value_bytes_;
  const int64_t entries_;
};

// Rows with weights; the longest first, so that the chains of a tile have similar lengths.
std::vector<Row> sorted_rows(const CondensedView& view) {
  std::vector<Row> rows;
  for (int64_t row = 0; row < view.active; ++row)
    if (const int64_t count = view.true_fan_in(row); count > 0) rows.push_back({row, count});
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.count > b.count; });
  return rows;
}

// Gives all tiles the steps of the longest, if that adds little: a kernel then knows where a tile
// begins without a look at memory. Returns the steps of all, 0 if they differ.
int64_t make_equal(std::vector<DeltaTile>& tiles) {
  constexpr double kMost = 1.03;
  int64_t sum = 0;
  int32_t most = 0;
  for (const DeltaTile& tile : tiles) {
    sum += tile.steps;
    most = std::max(most, tile.steps);
  }
  if (static_cast<double>(most) * static_cast<double>(tiles.size()) >
      kMost * static_cast<double>(sum))
    return 0;
  for (DeltaTile& tile : tiles) tile.steps = most;
  return most;
}

}  // namespace

int64_t longest_row(const CondensedView& view) {
  int64_t longest = 0;
  for (int64_t row = 0; row < view.active; ++row)
    longest = std::max(longest, view.true_fan_in(row));
  return longest;
}

DeltaLayout pack_delta(const CondensedView& view, const DeltaCut& cut, const Executor& executor,
                       Blob& blob) {
  if (view.in_features > kMaxColumns16)
    throw std::invalid_argument("the delta kernel takes up to " + std::to_string(kMaxColumns16) +
                                " columns, the layer has " + std::to_string(view.in_features));
  const std::vector<Row> rows = sorted_rows(view);
  const Packer packer(view, cut, rows);
  DeltaLayout layout;
  layout.value_type = view.value_type;
  layout.in_features = view.in_features;
  layout.out_features = view.out_features;
  layout.active = packer.active();
  layout.cut = cut;
  layout.tile_count = packer.tiles();

  const auto count = static_cast<size_t>(layout.tile_count);
  std::vector<DeltaTile> tiles(count);
  auto measure = [&](size_t tile) {
    tiles[tile].steps = static_cast<int32_t>(packer.steps_of(static_cast<int64_t>(tile)));
  };
  run_tasks(executor, count, measure);
  layout.steps = make_equal(tiles);
  for (size_t tile = 0; tile < count; ++tile) {
    tiles[tile].chunk = counted(layout.chunks, "chunks of weights");
    layout.chunks += tiles[tile].steps * packer.chains_of(static_cast<int64_t>(tile));
  }
  counted(layout.chunks, "chunks of weights");
  int64_t weights = 0;
  for (const Row& row : rows) weights += row.count;
  if (weights > 0)
    layout.padding =
        static_cast<double>(layout.chunks * packer.entries()) / static_cast<double>(weights);

  const int64_t chains = cut.rows * cut.parts;
  layout.values = blob.add(layout.chunks * 16);
  layout.deltas = blob.add(layout.chunks * packer.entries());
  layout.starts = blob.add(layout.tile_count * chains * static_cast<int64_t>(sizeof(uint16_t)));
  layout.tiles = append(tiles, blob);
  std::vector<int32_t> outputs;
  for (const Row& row : rows) outputs.push_back(view.rows[row.stored]);
  std::vector<bool> taken(static_cast<size_t>(view.out_features));
  for (const int32_t output : outputs) taken[static_cast<size_t>(output)] = true;
  for (int64_t output = 0; output < view.out_features; ++output)
    if (!taken[static_cast<size_t>(output)]) outputs.push_back(static_cast<int32_t>(output));
  std::vector<float> bias;
  for (const int32_t output : outputs) bias.push_back(view.bias[output]);
  layout.outputs = append(outputs, blob);
  layout.bias = append(bias, blob);

  auto write = [&](size_t tile) {
    const int64_t chunk = tiles[tile].chunk;
    packer.write(static_cast<int64_t>(tile), blob.at<unsigned char>(layout.values) + chunk * 16,
                 blob.at<unsigned char>(layout.deltas) + chunk * packer.entries(),
                 blob.at<uint16_t>(layout.starts) + static_cast<int64_t>(tile) * chains);
  };
  run_tasks(executor, count, write);
  return layout;
}

DeltaArgs DeltaLayout::arguments(const void* base) const {
  const unsigned char* bytes = static_cast<const unsigned char*>(base);
  DeltaArgs args{};
  args.values = bytes + values;
  args.deltas = bytes + deltas;
  args.starts = reinterpret_cast<const uint16_t*>(bytes + starts);
  args.tiles = reinterpret_cast<const DeltaTile*>(bytes + tiles);
  args.outputs = reinterpret_cast<const int32_t*>(bytes + outputs);
  args.bias = reinterpret_cast<const float*>(bytes + bias);
  args.chunks = chunks;
  args.in_features = static_cast<int32_t>(in_features);
  args.out_features = static_cast<int32_t>(out_features);
  args.active = static_cast<int32_t>(active);
  args.rows = static_cast<int32_t>(cut.rows);
  args.parts = static_cast<int32_t>(cut.parts);
  args.steps = static_cast<int32_t>(steps);
  return args;
}

}  // namespace fanin::cuda
