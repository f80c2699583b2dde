#include "cuda/expand_layout.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <string>

#include "core/divide_up.h"
#include "kernels/source_row.h"

namespace fanin::cuda {
namespace {

constexpr int kRows = ExpandShape::kRows;
constexpr size_t kVectorWords = ExpandShape::kVectorWords;
constexpr size_t kBanks = 32;

template <typename X>
bool fits(float value) {
  const float rounded = widen(narrow<X>(value));
  return rounded == value || (rounded != rounded && value != value);
}
template <>
bool fits<float>(float value) {
  return !std::isfinite(value) || std::isfinite(float_of(tf32_bits(bits_of(value))));
}

// The bits of a word that hold the value.
template <typename X>
uint32_t value_part(float value) {
  return static_cast<uint32_t>(narrow<X>(value).bits) << 16;
}
template <>
uint32_t value_part<float>(float value) {
  return tf32_bits(bits_of(value)) | (value != value ? 0x400000 : 0);  // a NaN remains one
}

// The words that the lanes of a warp store at once.
struct Group {
  size_t lanes = 0;
  std::vector<uint32_t> words;
  std::array<int, kBanks> loads{};  // words of each bank
  int most = 0;                     // of them, which is what the store costs

  // Smaller is better: what a word of that bank adds to the cost, then whether the bank has one
  // already, then how full the group is.
  std::array<int64_t, 3> cost_of(size_t bank) const {
    return {std::max(0, loads[bank] + 1 - most), loads[bank],
            static_cast<int64_t>(words.size()) - static_cast<int64_t>(lanes)};
  }

  void add(uint32_t word, size_t bank) {
    words.push_back(word);
    most = std::max(most, ++loads[bank]);
  }
};

// The words of a tile by the bank of shared memory that they are stored to.
template <typename X>
class TileWords {
  using Shape = ExpandTile<X>;

 public:
  void add(float value, int row, int column) {
    put(value_part<X>(value), Shape::place(row, column));
  }

  // Appends the tile's vectors and empties it. A warp's lanes store the first words of their
  // vectors at once, then the second ones, and so on: words are dealt so that a store has few of
  // one bank.
  void move_to(std::vector<Raw<16>>& vectors) {
    for (int filled = 0; count_ % kVectorWords != 0; ++filled)
      put(0, Shape::kImage + Shape::kPair * filled);
    std::vector<Group> groups;
    for (size_t left = count_ / kVectorWords; left > 0; left -= groups.back().lanes) {
      Group group;
      group.lanes = std::min<size_t>(32, left);
      groups.insert(groups.end(), kVectorWords, group);
    }
    std::stable_sort(banks_.begin(), banks_.end(),
                     [](const Bank& a, const Bank& b) { return a.words.size() > b.words.size(); });
    for (Bank& bank : banks_) {
      for (const uint32_t word : bank.words) best(groups, bank.number).add(word, bank.number);
      bank.words.clear();
    }
    for (size_t first = 0; first < groups.size(); first += kVectorWords)
      for (size_t lane = 0; lane < groups[first].lanes; ++lane) {
        Raw<16>& vector = vectors.emplace_back();
        for (size_t i = 0; i < kVectorWords; ++i) vector.words[i] = groups[first + i].words[lane];
      }
    std::sort(banks_.begin(), banks_.end(),
              [](const Bank& a, const Bank& b) { return a.number < b.number; });
    count_ = 0;
  }

 private:
  struct Bank {
    size_t number = 0;
    std::vector<uint32_t> words;
  };

  static std::array<Bank, kBanks> numbered() {
    std::array<Bank, kBanks> banks;
    for (size_t bank = 0; bank < kBanks; ++bank) banks[bank].number = bank;
    return banks;
  }

  void put(uint32_t value, int place) {
    banks_[static_cast<size_t>(place / Shape::kPair) % kBanks].words.push_back(
        value | static_cast<uint32_t>(place));
    ++count_;
  }

  static Group& best(std::vector<Group>& groups, size_t bank) {
    Group* found = nullptr;
    for (Group& group : groups)
      if (group.words.size() < group.lanes &&
          (!found || group.cost_of(bank) < found->cost_of(bank)))
        found = &group;
    return *found;
  }

  std::array<Bank, kBanks> banks_ = numbered();
  size_t count_ = 0;
};

// The rows of every tile: of each group those with weights first, then the others, both in
// ascending order.
struct TileRows {
  std::vector<int32_t> outputs;  // [tiles, 16]; -1 for none
  std::vector<SourceRow> stored;

  TileRows(const CondensedView& view, const ExpandLayout& layout)
      : outputs(static_cast<size_t>(layout.tiles() * kRows), -1), stored(outputs.size()) {
    const int64_t group_rows = view.out_features / layout.groups;
    int64_t row = 0;
    for (int64_t group = 0; group < layout.groups; ++group) {
      auto at = static_cast<size_t>(group * layout.group_tiles * kRows);
      std::vector<int32_t> others;
      for (int64_t output = group * group_rows; output < (group + 1) * group_rows; ++output) {
        if (row == view.active || view.rows[row] != output) {
          others.push_back(static_cast<int32_t>(output));
          continue;
        }
        outputs[at] = static_cast<int32_t>(output);
        stored[at++] = {row, 0, view.true_fan_in(row)};
        ++row;
      }
      std::copy(others.begin(), others.end(), outputs.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
};

template <typename X>
std::vector<Raw<16>> pack_words(const CondensedView& view, const ExpandLayout& layout,
                                std::vector<SourceRow>& rows, std::vector<int32_t>& starts) {
  constexpr int kColumns = ExpandTile<X>::kColumns;
  std::vector<Raw<16>> vectors;
  const auto add_start = [&] {
    starts.push_back(counted(static_cast<int64_t>(vectors.size()), "vectors of four weights"));
  };
  TileWords<X> tile;
  for (int64_t first = 0; first < layout.tiles() * kRows; first += kRows)
    for (int64_t chunk = 0; chunk < layout.chunks; ++chunk) {
      add_start();
      for (int i = 0; i < kRows; ++i) {
        SourceRow& row = rows[static_cast<size_t>(first + i)];
        for (; row.at < row.end; ++row.at) {
          const int64_t column = view.index(row.row, row.at) - chunk * kColumns;
          if (column >= kColumns) break;
          tile.add(view.value(row.row, row.at), i, static_cast<int>(column));
        }
      }
      tile.move_to(vectors);
    }
  add_start();
  return vectors;
}

}  // namespace

bool values_fit(const CondensedView& view, ValueType type) {
  if (type != ValueType::kFloat32 && view.value_type == type) return true;
  return visit_type(type, [&](auto x) {
    for (int64_t row = 0; row < view.active; ++row)
      for (int64_t entry = 0; entry < view.fan_in; ++entry)
        if (!fits<decltype(x)>(view.value(row, entry))) return false;
    return true;
  });
}

ExpandLayout pack_expand(const CondensedView& view, ValueType activations, int64_t groups,
                         Blob& blob) {
  if (!values_fit(view, activations))
    throw std::invalid_argument(std::string("the expand kernel takes values that are ") +
                                value_type_name(activations) +
                                " numbers; export the model with --precision");
  ExpandLayout layout;
  layout.activations = activations;
  layout.in_features = view.in_features;
  layout.out_features = view.out_features;
  layout.groups = groups;
  layout.group_tiles = divide_up(view.out_features / groups, kRows);
  layout.chunks = divide_up(view.in_features, expand_columns(activations));
  counted(layout.tiles() * std::max<int64_t>(1, layout.chunks) * kRows, "rows of tiles");
  TileRows rows(view, layout);
  std::vector<int32_t> starts;
  const std::vector<Raw<16>> vectors = visit_type(activations, [&](auto x) {
    return pack_words<decltype(x)>(view, layout, rows.stored, starts);
  });
  int64_t weights = 0;
  for (int64_t row = 0; row < view.active; ++row) weights += view.true_fan_in(row);
  layout.vectors = static_cast<int64_t>(vectors.size());
  if (weights > 0)
    layout.padding = static_cast<double>(layout.vectors * ExpandShape::kVectorWords) /
                     static_cast<double>(weights);
  layout.words = append(vectors, blob);
  layout.starts = append(starts, blob);
  layout.outputs = append(rows.outputs, blob);
  layout.bias = append_bias(view, blob);
  return layout;
}

ExpandArgs ExpandLayout::arguments(const void* base) const {
  const unsigned char* bytes = static_cast<const unsigned char*>(base);
  ExpandArgs args{};
  args.words = bytes + words;
  args.starts = reinterpret_cast<const int32_t*>(bytes + starts);
  args.outputs = reinterpret_cast<const int32_t*>(bytes + outputs);
  args.bias = reinterpret_cast<const float*>(bytes + bias);
  args.in_features = static_cast<int32_t>(in_features);
  args.out_features = static_cast<int32_t>(out_features);
  args.vectors = static_cast<int32_t>(vectors);
  args.groups = static_cast<int32_t>(groups);
  args.group_tiles = static_cast<int32_t>(group_tiles);
  args.chunks = static_cast<int32_t>(chunks);
  return args;
}

}  // namespace fanin::cuda
