#include "cuda/expand_layout.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

#include "core/divide_up.h"
#include "kernels/source_row.h"

namespace fanin::cuda {
namespace {

constexpr int kRows = ExpandShape::kRows;
constexpr int kColumns = ExpandShape::kColumns;
constexpr size_t kVectorWords = ExpandShape::kVectorWords;
constexpr size_t kBanks = 32;

template <typename X>
bool fits(float value) {
  const float rounded = widen(narrow<X>(value));
  return rounded == value || (rounded != rounded && value != value);
}

// A word: the value's bits, and its place in the image of its tile.
uint32_t word_of(uint16_t bits, int place) {
  return static_cast<uint32_t>(bits) << 16 | static_cast<uint32_t>(place);
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
class Tile {
 public:
  void add(uint16_t bits, int row, int column) { put(bits, ExpandShape::place(row, column)); }

  // Appends the tile's vectors and empties it. A warp's lanes store the first words of their
  // vectors at once, then the second ones, and so on: words are dealt so that a store has few of
  // one bank.
  void move_to(std::vector<Raw<16>>& vectors) {
    for (int filled = 0; count_ % kVectorWords != 0; ++filled)
      put(0, ExpandShape::kImage + 2 * filled);
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

  void put(uint16_t bits, int place) {
    banks_[static_cast<size_t>(place / 2) % kBanks].words.push_back(word_of(bits, place));
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

template <typename X>
std::vector<Raw<16>> pack_words(const CondensedView& view, const ExpandLayout& layout,
                                std::vector<int32_t>& starts) {
  std::vector<SourceRow> rows(static_cast<size_t>(layout.tiles * kRows));
  for (int64_t row = 0; row < view.active; ++row)
    rows[static_cast<size_t>(row)] = {row, 0, view.true_fan_in(row)};
  std::vector<Raw<16>> vectors;
  const auto add_start = [&] {
    starts.push_back(counted(static_cast<int64_t>(vectors.size()), "vectors of four weights"));
  };
  Tile tile;
  for (int64_t first = 0; first < layout.tiles * kRows; first += kRows)
    for (int64_t chunk = 0; chunk < layout.chunks; ++chunk) {
      add_start();
      for (int i = 0; i < kRows; ++i) {
        SourceRow& row = rows[static_cast<size_t>(first + i)];
        for (; row.at < row.end; ++row.at) {
          const int64_t column = view.index(row.row, row.at) - chunk * kColumns;
          if (column >= kColumns) break;
          tile.add(narrow<X>(view.value(row.row, row.at)).bits, i, static_cast<int>(column));
        }
      }
      tile.move_to(vectors);
    }
  add_start();
  return vectors;
}

}  // namespace

bool values_fit(const CondensedView& view, ValueType type) {
  if (view.value_type == type) return true;
  return visit_type(type, [&](auto x) {
    for (int64_t row = 0; row < view.active; ++row)
      for (int64_t entry = 0; entry < view.fan_in; ++entry)
        if (!fits<decltype(x)>(view.value(row, entry))) return false;
    return true;
  });
}

ExpandLayout pack_expand(const CondensedView& view, ValueType activations, Blob& blob) {
  if (activations == ValueType::kFloat32 || !values_fit(view, activations))
    throw std::invalid_argument(
        std::string("the expand kernel takes values that are ") +
        value_type_name(activations == ValueType::kFloat32 ? ValueType::kBfloat16 : activations) +
        " numbers; export the model with --precision");
  ExpandLayout layout;
  layout.in_features = view.in_features;
  layout.out_features = view.out_features;
  layout.tiles = divide_up(view.out_features, kRows);
  layout.chunks = divide_up(view.in_features, kColumns);
  counted(layout.tiles * layout.chunks + 1, "tiles of 16 rows and 128 columns");
  std::vector<int32_t> outputs = order_of_outputs(view);
  outputs.resize(static_cast<size_t>(layout.tiles * kRows), -1);

  std::vector<int32_t> starts;
  std::vector<Raw<16>> vectors = activations == ValueType::kFloat16
                                     ? pack_words<Float16>(view, layout, starts)
                                     : pack_words<Bfloat16>(view, layout, starts);
  int64_t weights = 0;
  for (int64_t row = 0; row < view.active; ++row) weights += view.true_fan_in(row);
  layout.vectors = static_cast<int64_t>(vectors.size());
  if (weights > 0)
    layout.padding = static_cast<double>(layout.vectors * ExpandShape::kVectorWords) /
                     static_cast<double>(weights);
  layout.words = append(vectors, blob);
  layout.starts = append(starts, blob);
  layout.outputs = append(outputs, blob);
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
  args.tiles = static_cast<int32_t>(tiles);
  args.chunks = static_cast<int32_t>(chunks);
  return args;
}

}  // namespace fanin::cuda
