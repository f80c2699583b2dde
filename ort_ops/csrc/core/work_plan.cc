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

// All numbers of threads are tried up to this one, above it about every sixteenth part.
constexpr int64_t kThreadSteps = 17;

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

// The last number up to `most` that fits, but at least `least`. What fits comes before what does
// not. Looks around `guess` first.
template <typename Fits>
int64_t last_that_fits(int64_t least, int64_t most, int64_t guess, const Fits& fits) {
  const int64_t at = std::clamp(guess, least, most);
  if (fits(at)) {
    least = at;
    for (int64_t step = 1; least < most; step *= 2) {
      const int64_t next = std::min(most, least + step);
      if (!fits(next)) {
        most = next - 1;
        break;
      }
      least = next;
    }
  } else {
    most = at - 1;
    for (int64_t step = 1; least < most; step *= 2) {
      const int64_t next = std::max(least, most - step);
      if (fits(next)) {
        least = next;
        break;
      }
      most = next - 1;
    }
  }
  while (least < most) {
    const int64_t middle = most - (most - least) / 2;
    if (fits(middle))
      least = middle;
    else
      most = middle - 1;
  }
  return least;
}

// Gives each of so many threads what takes it at most `limit`, but at least a unit, since none is
// smaller; whether that is all there is.
bool share_out(const Line& line, size_t threads, double limit, std::vector<int64_t>& begins) {
  begins.assign(1, 0);
  int64_t length = line.units() / static_cast<int64_t>(threads);
  while (begins.back() < line.units()) {
    if (begins.size() > threads) return false;
    const int64_t begin = begins.back();
    const int64_t end = last_that_fits(begin + 1, line.units(), begin + length, [&](int64_t unit) {
      return line.microseconds(begin, unit) <= limit;
    });
    begins.push_back(end);
    length = end - begin;
  }
  return true;
}

// The plan for up to so many threads in which the one that has most to do ends first: at worst
// within 1 %.
WorkPlan share_out_evenly(const Line& line, size_t threads) {
  const double alone = line.microseconds(0, line.units());
  double low = alone / static_cast<double>(threads), high = low;
  WorkPlan plan;
  // Most can be shared almost evenly, so the search begins close to the average.
  for (double slack = 0.02; !share_out(line, threads, high, plan.begins); slack *= 2) {
    low = high;
    high *= 1 + slack;
  }
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
  best.longest = best.mean = best.microseconds = alone;

  // No split is shorter than the average; the most promising numbers of threads come first, so that
  // few plans are made.
  struct Candidate {
    double least;
    size_t threads;
  };
  std::vector<Candidate> candidates;
  const int64_t most = std::min<int64_t>(static_cast<int64_t>(threads), line.units());
  for (int64_t t = most; t > 1; t -= 1 + t / kThreadSteps) {
    const auto count = static_cast<double>(t);
    candidates.push_back(
        {dispatch.microseconds(static_cast<size_t>(t)) + alone / count, static_cast<size_t>(t)});
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.least < b.least; });
  double shortest = alone;
  std::vector<WorkPlan> plans;
  for (const Candidate& candidate : candidates) {
    if (candidate.least > shortest * kAsGood) break;
    WorkPlan plan = share_out_evenly(line, candidate.threads);
    plan.dispatch = dispatch.microseconds(plan.threads);
    if (plan.time() >= alone || plan.time() > shortest * kAsGood) continue;
    shortest = std::min(shortest, plan.time());
    plans.push_back(std::move(plan));
  }
  for (WorkPlan& plan : plans) {
    const bool as_good = plan.time() <= shortest * kAsGood;
    if (as_good && (best.threads == 1 || plan.threads < best.threads)) {
      plan.microseconds = alone;
      best = std::move(plan);
    }
  }
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
  // The high bits of the product: sizes are often multiples of a power of two.
  const int64_t sizes = key.samples + key.height * 65537 + key.width * 257 + key.form;
  const uint64_t mixed = (static_cast<uint64_t>(sizes) + key.threads) * 0x9e3779b97f4a7c15u;
  return static_cast<size_t>(mixed >> 32) % kSlots;
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
