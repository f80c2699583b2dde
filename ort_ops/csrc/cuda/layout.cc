#include "cuda/layout.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "kernels/source_row.h"

namespace fanin::cuda {
namespace {

double ratio(int64_t lanes, int64_t weights) {
  return weights > 0 ? static_cast<double>(lanes) / static_cast<double>(weights) : 1.0;
}

}  // namespace

int32_t counted(int64_t value, const char* what) {
  if (value > std::numeric_limits<int32_t>::max())
    throw std::length_error("the layer has " + std::to_string(value) + " " + what +
                            ", the CUDA layouts count up to 2147483647");
  return static_cast<int32_t>(value);
}

int64_t Blob::add(int64_t size) {
  const size_t start = (bytes.size() + 255) / 256 * 256;
  bytes.resize(start + static_cast<size_t>(size));
  return static_cast<int64_t>(start);
}

std::vector<int32_t> order_of_outputs(const CondensedView& view) {
  std::vector<int32_t> order(view.rows, view.rows + view.active);
  int64_t row = 0;
  for (int64_t output = 0; output < view.out_features; ++output) {
    if (row < view.active && view.rows[row] == output) {
      ++row;
    } else {
      order.push_back(static_cast<int32_t>(output));
    }
  }
  return order;
}

int64_t append_bias(const CondensedView& view, Blob& blob) {
  const int64_t bytes = view.out_features * static_cast<int64_t>(sizeof(float));
  const int64_t offset = blob.add(bytes);
  std::memcpy(blob.at<unsigned char>(offset), view.bias, static_cast<size_t>(bytes));
  return offset;
}

StreamLayout pack_stream(const CondensedView& view, Blob& blob) {
  StreamLayout layout;
  layout.value_type = view.value_type;
  layout.index_bytes = view.in_features <= kMaxColumns16 ? 2 : 4;
  layout.in_features = view.in_features;
  layout.out_features = view.out_features;
  layout.active = view.active;
  const int64_t value_size = static_cast<int64_t>(value_bytes(view.value_type));
  const int64_t entries = 16 / value_size;  // of a chunk

  std::vector<int32_t> counts(static_cast<size_t>(view.active));
  int64_t longest = 0, weights = 0;
  for (int64_t row = 0; row < view.active; ++row) {
    const int64_t count = view.true_fan_in(row);
    counts[static_cast<size_t>(row)] = counted(count, "weights in a row");
    longest = std::max(longest, count);
    weights += count;
  }
  layout.chunks = (longest + entries - 1) / entries;
  const int64_t lanes = layout.active * layout.chunks * entries;
  layout.padding = ratio(lanes, weights);
  layout.values = blob.add(lanes * value_size);
  layout.indices = blob.add(lanes * layout.index_bytes);
  layout.rows = blob.add(view.out_features * static_cast<int64_t>(sizeof(StreamRow)));
  layout.bias = append_bias(view, blob);

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
constexpr int kBandRows = PanelShape::kBandRows;
constexpr int64_t kColumnUnits = PanelShape::kStride / 16;

// The entries of a stored row within a part.
struct Piece {
  int place = 0;  // of the row in its band
  int64_t row = 0;
  int64_t at = 0;
  int64_t end = 0;
};

// The pieces of a band in a part, longest first; advances all rows to the next part.
void next_pieces(const CondensedView& view, int64_t end_column, SourceRow (&rows)[kBandRows],
                 Piece (&pieces)[kBandRows]) {
  for (int place = 0; place < kBandRows; ++place) {
    SourceRow& row = rows[place];
    pieces[place] = {place, row.row, row.at, row.at};
    while (row.at < row.end && view.index(row.row, row.at) < end_column) ++row.at;
    pieces[place].end = row.at;
  }
  std::stable_sort(pieces, pieces + kBandRows,
                   [](const Piece& a, const Piece& b) { return a.end - a.at > b.end - b.at; });
}

}  // namespace

PanelLayout pack_panel(const CondensedView& view, const PanelCut& cut, Blob& blob) {
  PanelLayout layout;
  layout.in_features = view.in_features;
  layout.out_features = view.out_features;
  layout.bands = (view.out_features + kBandRows - 1) / kBandRows;
  layout.cut = cut;
  std::vector<int32_t> outputs = order_of_outputs(view);
  outputs.resize(static_cast<size_t>(layout.bands * kBandRows), -1);

  int64_t weights = 0;
  std::vector<SourceRow> rows(outputs.size());
  for (int64_t row = 0; row < view.active; ++row) {
    rows[static_cast<size_t>(row)] = {row, 0, view.true_fan_in(row)};
    weights += rows[static_cast<size_t>(row)].end;
  }
  std::vector<PanelWeights> packed;
  std::vector<uint16_t> places;
  std::vector<int32_t> ends;
  packed.reserve(static_cast<size_t>(static_cast<double>(weights) * 1.2 / kEntries));
  counted(cut.parts * layout.bands * kBandRows, "rows of a part");
  for (int64_t part = 0; part < cut.parts; ++part)
    for (int64_t band = 0; band < layout.bands; ++band) {
      SourceRow band_rows[kBandRows];
      Piece pieces[kBandRows];
      std::copy_n(&rows[static_cast<size_t>(band * kBandRows)], kBandRows, band_rows);
      next_pieces(view, (part + 1) * cut.columns, band_rows, pieces);
      std::copy_n(band_rows, kBandRows, &rows[static_cast<size_t>(band * kBandRows)]);
      for (int first = 0; first < kBandRows; first += kRows) {
        const int64_t longest = pieces[first].end - pieces[first].at;
        for (int64_t start = 0; start < longest; start += kEntries, ++layout.units)
          for (int i = first; i < first + kRows; ++i) {
            PanelWeights& row = packed.emplace_back();
            for (int64_t entry = 0; entry < kEntries; ++entry) {
              const int64_t at = pieces[i].at + start + entry;
              const bool there = at < pieces[i].end;
              row.values[entry] = there ? view.value(pieces[i].row, at) : 0.0f;
              row.offsets[entry] = static_cast<uint16_t>(
                  kColumnUnits *
                  (there ? view.index(pieces[i].row, at) - part * cut.columns : cut.columns));
            }
          }
        ends.push_back(counted(layout.units, "units of 32 weights"));
        for (int i = first; i < first + kRows; ++i)
          places.push_back(static_cast<uint16_t>(pieces[i].place));
      }
    }
  layout.padding = ratio(layout.units * kRows * kEntries, weights);
  // Padding, since kernels load a unit ahead without checking that it exists.
  if (layout.units == 0) packed.resize(kRows), layout.units = 1;

  layout.weights = append(packed, blob);
  layout.ends = append(ends, blob);
  layout.places = append(places, blob);
  layout.outputs = append(outputs, blob);
  layout.bias = append_bias(view, blob);
  return layout;
}

PanelArgs PanelLayout::arguments(const void* base) const {
  const unsigned char* bytes = static_cast<const unsigned char*>(base);
  PanelArgs args{};
  args.weights = bytes + weights;
  args.ends = reinterpret_cast<const int32_t*>(bytes + ends);
  args.places = reinterpret_cast<const uint16_t*>(bytes + places);
  args.outputs = reinterpret_cast<const int32_t*>(bytes + outputs);
  args.bias = reinterpret_cast<const float*>(bytes + bias);
  args.in_features = static_cast<int32_t>(in_features);
  args.out_features = static_cast<int32_t>(out_features);
  args.units = static_cast<int32_t>(units);
  args.bands = static_cast<int32_t>(bands);
  args.parts = static_cast<int32_t>(cut.parts);
  args.columns = static_cast<int32_t>(cut.columns);
  args.cluster = static_cast<int32_t>(cut.cluster);
  return args;
}

}  // namespace fanin::cuda
