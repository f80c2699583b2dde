#include "core/work_plan.h"

#include <algorithm>
#include <utility>

#include "core/parallel.h"

namespace fanin {
namespace {

// A thread whose share takes longer than this has it in several parts. Claiming one is
// an atomic exchange, and a thread that stops for a moment then keeps a quarter of its share from
// the others.
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
    }
  }

  int64_t units() const { return unit_ends_.empty() ? 0 : unit_ends_.back(); }

  // The unit that begins the tile closest to this one.
  int64_t closest_tile(int64_t unit) const {
    const size_t g = grid_of(unit);
    if (g == grids_.size()) return units();
    const int64_t blocks = grids_[g].blocks(), inside = unit - unit_begin(g);
    return unit_begin(g) + (inside + blocks / 2) / blocks * blocks;
  }

  double microseconds(int64_t begin, int64_t end) const {
    double sum = 0;
    for (size_t g = grid_of(begin); g < grids_.size() && unit_begin(g) < end; ++g)
      sum += grids_[g].microseconds(std::max(begin, unit_begin(g)) - unit_begin(g),
                                    std::min(end, unit_ends_[g]) - unit_begin(g));
    return sum;
  }

 private:
  size_t grid_of(int64_t unit) const {
    return static_cast<size_t>(std::upper_bound(unit_ends_.begin(), unit_ends_.end(), unit) -
                               unit_ends_.begin());
  }
  int64_t unit_begin(size_t g) const { return g == 0 ? 0 : unit_ends_[g - 1]; }

  const std::vector<WorkGrid>& grids_;
  std::vector<int64_t> unit_ends_;
};

// Gives each of so many threads what takes it at most `limit`; whether that is all there is.
bool share_out(const Line& line, size_t threads, double limit, std::vector<int64_t>& begins) {
  begins.assign(1, 0);
  while (begins.back() < line.units()) {
    if (begins.size() > threads) return false;
    // The last end that keeps the limit; at least a unit, since none is smaller.
    int64_t least = begins.back() + 1, most = line.units();
    while (least < most) {
      const int64_t middle = most - (most - least) / 2;
      if (line.microseconds(begins.back(), middle) <= limit)
        least = middle;
      else
        most = middle - 1;
    }
    begins.push_back(least);
  }
  return true;
}

// The plan for up to so many threads in which the one that has most to do ends first: at worst
// within 1 %.
WorkPlan share_out_evenly(const Line& line, size_t threads) {
  const double alone = line.microseconds(0, line.units());
  double low = alone / static_cast<double>(threads), high = alone;
  WorkPlan plan;
  share_out(line, threads, alone, plan.begins);
  std::vector<int64_t> begins;
  while (low < high * 0.99) {
    const double middle = (low + high) / 2;
    if (share_out(line, threads, middle, begins)) {
      plan.begins = begins;
      high = middle;
    } else {
      low = middle;
    }
  }
  plan.threads = plan.begins.size() - 1;
  double sum = 0;
  for (size_t t = 0; t < plan.threads; ++t) {
    const double time = line.microseconds(plan.begins[t], plan.begins[t + 1]);
    plan.longest = std::max(plan.longest, time);
    sum += time;
  }
  plan.mean = sum / static_cast<double>(plan.threads);
  return plan;
}

// Cuts each thread's range along tiles, so that no tile is entered more often.
void cut_parts(const Line& line, WorkPlan& plan) {
  std::vector<int64_t> cut{0};
  for (size_t t = 0; t < plan.threads; ++t) {
    const int64_t begin = plan.begins[t], end = plan.begins[t + 1];
    for (int64_t i = 1; i < kPartsPerThread; ++i)
      cut.push_back(std::clamp(line.closest_tile(begin + (end - begin) / kPartsPerThread * i),
                               cut.back(), end));
    cut.push_back(end);
  }
  plan.begins = std::move(cut);
}

}  // namespace

WorkGrid::WorkGrid(int64_t full_tiles, std::vector<WorkTail> narrower,
                   const std::vector<double>& blocks, double tile_entry)
    : tiles(full_tiles), tails(std::move(narrower)), entry(tile_entry) {
  double sum = 0;
  for (const double block : blocks) ends.push_back(sum += block);
}

WorkTail WorkGrid::tiles_before(int64_t tile) const {
  const auto full = static_cast<double>(std::min(tile, tiles));
  WorkTail sum{full, full};
  for (int64_t t = tiles; t < tile; ++t) {
    sum.blocks += tails[static_cast<size_t>(t - tiles)].blocks;
    sum.entry += tails[static_cast<size_t>(t - tiles)].entry;
  }
  return sum;
}

double WorkGrid::before(int64_t unit) const {
  if (ends.empty()) return 0.0;
  const int64_t tile = unit / blocks(), block = unit % blocks();
  const double sum = tiles_before(tile).blocks * ends.back();
  if (block == 0) return sum;
  const double share = tile < tiles ? 1.0 : tails[static_cast<size_t>(tile - tiles)].blocks;
  return sum + share * ends[static_cast<size_t>(block - 1)];
}

double WorkGrid::microseconds(int64_t begin, int64_t end) const {
  if (begin >= end) return 0.0;
  const int64_t first = begin / blocks(), last = (end - 1) / blocks();
  const double entered = tiles_before(last + 1).entry - tiles_before(first).entry;
  return before(end) - before(begin) + entered * entry;
}

WorkPlan plan_work(const std::vector<WorkGrid>& grids, size_t threads,
                   const DispatchCost& dispatch) {
  const Line line(grids);
  const double alone = line.microseconds(0, line.units());
  WorkPlan best;
  best.begins = {0, line.units()};
  best.longest = best.mean = alone;
  double shortest = alone;
  const int64_t most = std::min<int64_t>(static_cast<int64_t>(threads), line.units());
  for (int64_t t = most; t > 1; --t) {
    const double cost = dispatch.microseconds(static_cast<size_t>(t));
    // No split is shorter than the average.
    if (cost + alone / static_cast<double>(t) > shortest * kAsGood) continue;
    WorkPlan plan = share_out_evenly(line, static_cast<size_t>(t));
    plan.dispatch = dispatch.microseconds(plan.threads);
    if (plan.time() >= alone || plan.time() > shortest * kAsGood) continue;
    shortest = std::min(shortest, plan.time());
    best = std::move(plan);
  }
  best.microseconds = alone;
  if (best.threads > 1 && best.longest > kLongShareMicroseconds) cut_parts(line, best);
  return best;
}

WorkPlan plan_evenly(const EvenWork& work, size_t threads, const DispatchCost& dispatch) {
  WorkPlan plan;
  plan.threads = chunk_count(work, threads, dispatch);
  for (size_t t = 0; t <= plan.threads; ++t)
    plan.begins.push_back(static_cast<int64_t>(chunk_begin(work.parts, plan.threads, t)));
  plan.microseconds = work.microseconds;
  plan.longest = work.share(plan.threads);
  plan.mean = work.microseconds / static_cast<double>(plan.threads);
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
