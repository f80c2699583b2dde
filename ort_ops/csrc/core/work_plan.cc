#include "core/work_plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/parallel.h"

namespace fanin {
namespace {

// A thread whose share takes longer than this has it in several parts. Claiming one costs about
// 0.1 us, and a thread that stops for a moment then keeps a quarter of its share from the others.
constexpr double kLongShareMicroseconds = 100.0;
constexpr int64_t kPartsPerThread = 4;

// Fewer threads may take this much longer: others may want the rest.
constexpr double kAsGood = 1.01;

// All grids, one after the other.
class Line {
 public:
  explicit Line(const std::vector<WorkGrid>& grids) : grids_(grids) {
    for (const WorkGrid& grid : grids) {
      unit_ends_.push_back(units() + grid.units());
      time_ends_.push_back(microseconds() + grid.microseconds());
    }
  }

  int64_t units() const { return unit_ends_.empty() ? 0 : unit_ends_.back(); }
  double microseconds() const { return time_ends_.empty() ? 0.0 : time_ends_.back(); }

  double before(int64_t unit) const {
    const size_t g = static_cast<size_t>(
        std::upper_bound(unit_ends_.begin(), unit_ends_.end(), unit) - unit_ends_.begin());
    if (g == grids_.size()) return microseconds();
    return time_begin(g) + grids_[g].before(unit - unit_begin(g));
  }

  int64_t closest(double time) const {
    const size_t g = static_cast<size_t>(
        std::upper_bound(time_ends_.begin(), time_ends_.end(), time) - time_ends_.begin());
    if (g == grids_.size()) return units();
    return unit_begin(g) + grids_[g].closest(time - time_begin(g));
  }

  // The unit that begins the tile closest to this one.
  int64_t tile_begin(int64_t unit) const {
    const size_t g = static_cast<size_t>(
        std::upper_bound(unit_ends_.begin(), unit_ends_.end(), unit) - unit_ends_.begin());
    if (g == grids_.size()) return units();
    const int64_t blocks = grids_[g].blocks(), inside = unit - unit_begin(g);
    return unit_begin(g) + (inside + blocks / 2) / blocks * blocks;
  }

 private:
  int64_t unit_begin(size_t g) const { return g == 0 ? 0 : unit_ends_[g - 1]; }
  double time_begin(size_t g) const { return g == 0 ? 0.0 : time_ends_[g - 1]; }

  const std::vector<WorkGrid>& grids_;
  std::vector<int64_t> unit_ends_;
  std::vector<double> time_ends_;
};

// Where each of so many threads begins, and where the last one ends.
std::vector<int64_t> thread_begins(const Line& line, size_t threads) {
  std::vector<int64_t> begins(threads + 1);
  for (size_t t = 1; t < threads; ++t) {
    const double share = static_cast<double>(t) / static_cast<double>(threads);
    begins[t] = std::max(begins[t - 1], line.closest(share * line.microseconds()));
  }
  begins[threads] = line.units();
  return begins;
}

double longest_of(const Line& line, const std::vector<int64_t>& begins) {
  double longest = 0, at = 0;
  for (size_t t = 1; t < begins.size(); ++t) {
    const double end = line.before(begins[t]);
    longest = std::max(longest, end - at);
    at = end;
  }
  return longest;
}

// Cuts each thread's range along tiles, so that no tile's panel is made twice for it.
std::vector<int64_t> cut_parts(const Line& line, const std::vector<int64_t>& begins) {
  std::vector<int64_t> cut{0};
  for (size_t t = 0; t + 1 < begins.size(); ++t) {
    const int64_t size = begins[t + 1] - begins[t];
    for (int64_t i = 1; i < kPartsPerThread; ++i)
      cut.push_back(std::clamp(line.tile_begin(begins[t] + size / kPartsPerThread * i), cut.back(),
                               begins[t + 1]));
    cut.push_back(begins[t + 1]);
  }
  return cut;
}

}  // namespace

WorkGrid::WorkGrid(int64_t full_tiles, std::vector<double> tail_shares,
                   const std::vector<double>& blocks)
    : tiles(full_tiles), tails(std::move(tail_shares)) {
  double sum = 0;
  for (const double block : blocks) ends.push_back(sum += block);
}

double WorkGrid::before(int64_t unit) const {
  if (ends.empty()) return 0.0;
  const int64_t tile = unit / blocks(), block = unit % blocks();
  double sum = static_cast<double>(std::min(tile, tiles)) * ends.back();
  double share = 1.0;
  for (int64_t t = tiles; t <= tile && t - tiles < static_cast<int64_t>(tails.size()); ++t) {
    share = tails[static_cast<size_t>(t - tiles)];
    if (t < tile) sum += share * ends.back();
  }
  return block == 0 ? sum : sum + share * ends[static_cast<size_t>(block - 1)];
}

int64_t WorkGrid::closest(double microseconds) const {
  if (ends.empty() || ends.back() <= 0) return 0;
  int64_t tile = std::min(static_cast<int64_t>(microseconds / ends.back()), tiles);
  double left = microseconds - static_cast<double>(tile) * ends.back(), share = 1.0;
  if (tile == tiles) {
    for (const double tail : tails) {
      share = tail;
      if (left < share * ends.back()) break;
      left -= share * ends.back();
      ++tile;
    }
  }
  if (tile == tiles + static_cast<int64_t>(tails.size())) return units();
  const auto found = std::lower_bound(ends.begin(), ends.end(), left / share);
  int64_t block = found - ends.begin();
  const double low = block == 0 ? 0.0 : ends[static_cast<size_t>(block - 1)];
  if (found != ends.end() && *found - left / share < left / share - low) ++block;
  return std::min(tile * blocks() + block, units());
}

WorkPlan plan_work(const std::vector<WorkGrid>& grids, size_t threads,
                   const DispatchCost& dispatch) {
  const Line line(grids);
  WorkPlan best;
  best.microseconds = line.microseconds();
  const size_t most = static_cast<size_t>(
      std::clamp<int64_t>(line.units(), 1, static_cast<int64_t>(std::max<size_t>(threads, 1))));
  double shortest = std::numeric_limits<double>::infinity();
  for (size_t t = most; t >= 1; --t) {
    const double cost = dispatch.microseconds(t);
    // No split is shorter than the average.
    if (cost + best.microseconds / static_cast<double>(t) > shortest * kAsGood) continue;
    const std::vector<int64_t> begins = thread_begins(line, t);
    const double longest = longest_of(line, begins);
    if (cost + longest > shortest * kAsGood) continue;
    shortest = std::min(shortest, cost + longest);
    best.begins = begins;
    best.threads = t;
    best.longest = longest;
    best.dispatch = cost;
  }
  if (best.threads > 1 && best.longest > kLongShareMicroseconds)
    best.begins = cut_parts(line, best.begins);
  return best;
}

WorkPlan plan_evenly(const EvenWork& work, size_t threads, const DispatchCost& dispatch) {
  WorkPlan plan;
  plan.threads = chunk_count(work, threads, dispatch);
  for (size_t t = 0; t <= plan.threads; ++t)
    plan.begins.push_back(static_cast<int64_t>(chunk_begin(work.parts, plan.threads, t)));
  plan.microseconds = work.microseconds;
  plan.longest = work.share(plan.threads);
  plan.dispatch = dispatch.microseconds(plan.threads);
  return plan;
}

PlanCache::~PlanCache() {
  for (const std::atomic<const Entry*>& slot : slots_) delete slot.load(std::memory_order_relaxed);
}

size_t PlanCache::first_slot(const Key& key) {
  return (static_cast<size_t>(key.samples) * 0x9e3779b1u + key.threads) % kSlots;
}

const WorkPlan* PlanCache::lookup(const Key& key) const {
  const size_t first = first_slot(key);
  for (size_t i = 0; i < kProbes; ++i) {
    const Entry* entry = slots_[(first + i) % kSlots].load(std::memory_order_acquire);
    if (entry == nullptr) return nullptr;
    if (entry->key == key) return &entry->plan;
  }
  return nullptr;
}

const WorkPlan& PlanCache::keep(const Key& key, WorkPlan& plan) const {
  const size_t first = first_slot(key);
  auto made = std::make_unique<Entry>(Entry{key, plan});
  for (size_t i = 0; i < kProbes; ++i) {
    const Entry* there = nullptr;
    if (slots_[(first + i) % kSlots].compare_exchange_strong(there, made.get(),
                                                             std::memory_order_acq_rel))
      return made.release()->plan;
    if (there->key == key) return there->plan;
  }
  return plan;
}

}  // namespace fanin
