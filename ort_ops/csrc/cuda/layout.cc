#include "cuda/layout.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "kernels/source_row.h"

namespace fanin::cuda {
namespace {

int32_t checked(int64_t value, const char* what) {
  if (value > std::numeric_limits<int32_t>::max())
    throw std::length_error("the layer has " + std::to_string(value) + " " + what +
                            ", the CUDA layouts count up to 2147483647");
  return static_cast<int32_t>(value);
}

double ratio(int64_t lanes, int64_t weights) {
  return weights > 0 ? static_cast<double>(lanes) / static_cast<double>(weights) : 1.0;
}

void copy_bias(const CondensedView& view, unsigned char* to) {
  std::memcpy(to, view.bias, static_cast<size_t>(view.out_features) * sizeof(float));
}

}  // namespace

int64_t Blob::add(int64_t size) {
  const size_t start = (bytes.size() + 255) / 256 * 256;
  bytes.resize(start + static_cast<size_t>(size));
  return static_cast<int64_t>(start);
}

StreamLayout pack_stream(const CondensedView& view, Blob& blob) {
  StreamLayout layout;
  layout.value_type = view.value_type;
  layout.index_bytes = view.in_features <= 65536 ? 2 : 4;
  layout.in_features = view.in_features;
  layout.out_features = view.out_features;
  layout.active = view.active;
  const int64_t value_size = static_cast<int64_t>(value_bytes(view.value_type));
  const int64_t entries = 16 / value_size;  // of a chunk

  std::vector<int32_t> counts(static_cast<size_t>(view.active));
  int64_t longest = 0, weights = 0;
  for (int64_t row = 0; row < view.active; ++row) {
    const int64_t count = view.true_fan_in(row);
    counts[static_cast<size_t>(row)] = checked(count, "weights in a row");
    longest = std::max(longest, count);
    weights += count;
  }
  layout.chunks = (longest + entries - 1) / entries;
  const int64_t lanes = layout.active * layout.chunks * entries;
  layout.padding = ratio(lanes, weights);
  layout.values = blob.add(lanes * value_size);
  layout.indices = blob.add(lanes * layout.index_bytes);
  layout.rows = blob.add(view.out_features * static_cast<int64_t>(sizeof(StreamRow)));
  layout.bias = blob.add(view.out_features * static_cast<int64_t>(sizeof(float)));

  copy_bias(view, blob.at<unsigned char>(layout.bias));
  StreamRow* rows = blob.at<StreamRow>(layout.rows);
  for (int64_t row = 0; row < view.active; ++row) {
    const int32_t count = counts[static_cast<size_t>(row)];
    rows[view.rows[row]] = {static_cast<int32_t>(row), count};
    const int64_t first = row * layout.chunks * entries;
    std::memcpy(blob.at<unsigned char>(layout.values) + first * value_size,
                static_cast<const unsigned char*>(view.values) + row * view.fan_in * value_size,
                static_cast<size_t>(count * value_size));
    for (int64_t entry = 0; entry < count; ++entry) {
      const int64_t column = view.index(row, entry);
      if (layout.index_bytes == 2) {
        blob.at<uint16_t>(layout.indices)[first + entry] = static_cast<uint16_t>(column);
      } else {
        blob.at<uint32_t>(layout.indices)[first + entry] = static_cast<uint32_t>(column);
      }
    }
  }
  return layout;
}

StreamArgs StreamLayout::arguments(const void* base) const {
  const unsigned char* bytes = static_cast<const unsigned char*>(base);
  StreamArgs args{};
  args.values = bytes + values;
  args.indices = bytes + indices;
  args.rows = reinterpret_cast<const StreamRow*>(bytes + rows);
  args.bias = reinterpret_cast<const float*>(bytes + bias);
  args.stored_chunks = active * chunks;
  args.in_features = static_cast<int32_t>(in_features);
  args.out_features = static_cast<int32_t>(out_features);
  args.chunks = static_cast<int32_t>(chunks);
  return args;
}

namespace {

constexpr int kRows = PanelShape::kRows;
constexpr int kEntries = PanelShape::kEntries;
constexpr int64_t kColumns = PanelShape::kColumns;
constexpr int64_t kColumnUnits = PanelShape::kStride / 16;

// Four rows on their way through the steps. At a step a row can use the chunks that are in the
// ring; the oldest of them is about to go, and what it still holds must be taken.
class GroupSchedule {
 public:
  GroupSchedule(const CondensedView& view, const int64_t (&stored)[kRows], int64_t steps,
                int64_t ring)
      : view_(view), steps_(steps), ring_(ring) {
    int64_t longest = 0;
    for (int r = 0; r < kRows; ++r) {
      rows_[r] = stored[r] < 0 ? SourceRow{} : SourceRow{stored[r], 0, view.true_fan_in(stored[r])};
      longest = std::max(longest, rows_[r].end);
    }
    units_wanted_ = (longest + kEntries - 1) / kEntries;
  }

  // How many units the step takes. Whole ones, at the pace that spreads them evenly over the steps,
  // so that the warps of a block keep together; more if columns are about to go.
  int64_t units_of(int64_t step) {
    const bool last = step + 1 == steps_;
    int64_t due = 0, whole = std::numeric_limits<int64_t>::max(), left = 0;
    for (int r = 0; r < kRows; ++r) {
      SourceRow& row = rows_[r];
      while (there_[r] < row.end && column(row, there_[r]) < (step + 1) * kColumns) ++there_[r];
      int64_t going = row.at;
      if (last) {
        going = row.end;
      } else if (ring_ < steps_) {
        while (going < there_[r] && column(row, going) < (step - ring_ + 3) * kColumns) ++going;
      }
      due = std::max(due, going - row.at);
      left = std::max(left, there_[r] - row.at);
      // A row whose last entries are there gains nothing by waiting.
      if (there_[r] < row.end) whole = std::min(whole, (there_[r] - row.at) / kEntries);
    }
    whole = std::min(whole, (left + kEntries - 1) / kEntries);
    const int64_t pace = (units_wanted_ * (step + 1) + steps_ - 1) / steps_ - units_;
    const int64_t units =
        std::max((due + kEntries - 1) / kEntries, std::min(whole, std::max<int64_t>(pace, 0)));
    units_ += units;
    return units;
  }

  // Appends one unit to the arrays.
  void emit(std::vector<float>& values, std::vector<uint16_t>& offsets) {
    for (int r = 0; r < kRows; ++r)
      for (int entry = 0; entry < kEntries; ++entry) {
        SourceRow& row = rows_[r];
        if (row.at < there_[r]) {
          const int64_t from = column(row, row.at);
          const int64_t place = from / kColumns % ring_ * kColumns + from % kColumns;
          values.push_back(view_.value(row.row, row.at++));
          offsets.push_back(static_cast<uint16_t>(place * kColumnUnits));
        } else {
          values.push_back(0.0f);
          offsets.push_back(static_cast<uint16_t>(ring_ * kColumns * kColumnUnits));
        }
      }
  }

 private:
  int64_t column(const SourceRow& row, int64_t entry) const { return view_.index(row.row, entry); }

  const CondensedView& view_;
  const int64_t steps_;
  const int64_t ring_;
  SourceRow rows_[kRows];
  int64_t there_[kRows] = {};  // entries whose column has been in the ring
  int64_t units_wanted_;
  int64_t units_ = 0;
};

// Outputs by falling number of weights, so that groups have about equal rows and those without
// weights stand at the end.
std::vector<std::pair<int64_t, int64_t>> outputs_and_rows(const CondensedView& view,
                                                          int64_t& weights) {
  std::vector<std::pair<int64_t, int64_t>> order;
  std::vector<int64_t> counts(static_cast<size_t>(view.out_features), 0);
  order.reserve(counts.size());
  int64_t row = 0;
  weights = 0;
  for (int64_t output = 0; output < view.out_features; ++output) {
    const bool stored = row < view.active && view.rows[row] == output;
    order.emplace_back(output, stored ? row : -1);
    if (stored) weights += counts[static_cast<size_t>(output)] = view.true_fan_in(row++);
  }
  std::stable_sort(order.begin(), order.end(), [&counts](const auto& a, const auto& b) {
    return counts[static_cast<size_t>(a.first)] > counts[static_cast<size_t>(b.first)];
  });
  return order;
}

}  // namespace

PanelLayout pack_panel(const CondensedView& view, int64_t ring, Blob& blob) {
  PanelLayout layout;
  layout.in_features = view.in_features;
  layout.out_features = view.out_features;
  layout.steps = (view.in_features + kColumns - 1) / kColumns;
  layout.ring = std::min(ring, layout.steps);
  layout.groups = (view.out_features + kRows - 1) / kRows;
  layout.busy_groups = (view.active + kRows - 1) / kRows;
  int64_t weights = 0;
  const auto order = outputs_and_rows(view, weights);

  std::vector<float> values;
  std::vector<uint16_t> offsets;
  std::vector<int32_t> ends;
  std::vector<int32_t> outputs;
  const auto lanes = static_cast<size_t>(static_cast<double>(weights) * 1.25);
  values.reserve(lanes);
  offsets.reserve(lanes);
  ends.reserve(static_cast<size_t>(layout.busy_groups * layout.steps));
  for (int64_t group = 0; group < layout.groups; ++group) {
    int64_t stored[kRows];
    for (int r = 0; r < kRows; ++r) {
      const auto at = static_cast<size_t>(group * kRows + r);
      outputs.push_back(at < order.size() ? static_cast<int32_t>(order[at].first) : -1);
      stored[r] = at < order.size() ? order[at].second : -1;
    }
    if (group >= layout.busy_groups) continue;
    GroupSchedule schedule(view, stored, layout.steps, layout.ring);
    for (int64_t step = 0; step < layout.steps; ++step) {
      for (int64_t units = schedule.units_of(step); units > 0; --units) {
        schedule.emit(values, offsets);
        ++layout.units;
      }
      ends.push_back(checked(layout.units, "units of 16 weights"));
    }
  }
  layout.padding = ratio(layout.units * kRows * kEntries, weights);

  const auto append = [&blob](const auto& array) {
    const int64_t size = static_cast<int64_t>(array.size() * sizeof(array[0]));
    const int64_t offset = blob.add(size);
    if (size > 0)
      std::memcpy(blob.at<unsigned char>(offset), array.data(), static_cast<size_t>(size));
    return offset;
  };
  layout.values = append(values);
  layout.offsets = append(offsets);
  layout.ends = append(ends);
  layout.outputs = append(outputs);
  layout.bias = blob.add(view.out_features * static_cast<int64_t>(sizeof(float)));
  copy_bias(view, blob.at<unsigned char>(layout.bias));
  return layout;
}

PanelArgs PanelLayout::arguments(const void* base) const {
  const unsigned char* bytes = static_cast<const unsigned char*>(base);
  PanelArgs args{};
  args.values = bytes + values;
  args.offsets = bytes + offsets;
  args.ends = reinterpret_cast<const int32_t*>(bytes + ends);
  args.outputs = reinterpret_cast<const int32_t*>(bytes + outputs);
  args.bias = reinterpret_cast<const float*>(bytes + bias);
  args.in_features = static_cast<int32_t>(in_features);
  args.out_features = static_cast<int32_t>(out_features);
  args.units = static_cast<int32_t>(units);
  args.groups = static_cast<int32_t>(groups);
  args.busy_groups = static_cast<int32_t>(busy_groups);
  args.steps = static_cast<int32_t>(steps);
  args.ring = static_cast<int32_t>(ring);
  return args;
}

}  // namespace fanin::cuda
