// How the work of one run is shared between threads. Pure functions: what they decide depends on
// sizes, costs and a number of threads alone, so that it can be tested for any machine.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/executor.h"

namespace fanin {

// What a narrower tile takes, relative to a full one.
struct WorkTail {
  double blocks;
  double entry;
};

// Units of work: each of `tiles` tiles of samples has one for every block of rows. Units are
// numbered tile after tile.
struct WorkGrid {
  int64_t tiles = 0;            // of full width
  std::vector<WorkTail> tails;  // narrower ones, which follow
  std::vector<double> ends;     // [blocks] microseconds of a full tile's blocks, summed up
  double entry = 0;  // microseconds that each thread takes before its blocks of a full tile

  WorkGrid() = default;
  WorkGrid(int64_t full_tiles, std::vector<WorkTail> narrower, const std::vector<double>& blocks,
           double tile_entry = 0);

  int64_t blocks() const { return static_cast<int64_t>(ends.size()); }
  int64_t all_tiles() const { return tiles + static_cast<int64_t>(tails.size()); }
  int64_t units() const { return all_tiles() * blocks(); }

  // What the units before number `unit` take, without the entries into their tiles.
  double before(int64_t unit) const;

  // What a thread takes that does the units from `begin` to `end`.
  double microseconds(int64_t begin, int64_t end) const;

 private:
  // What the tiles before number `tile` take together, in full ones.
  WorkTail tiles_before(int64_t tile) const;
};

// Units are numbered through all grids, and each part is a range of them.
struct WorkPlan {
  std::vector<int64_t> begins;  // [parts + 1], the first unit of each part
  size_t threads = 1;           // each takes parts() / threads parts in a row
  int tile_width = 0;           // samples of a tile; 0 where units are no tiles
  double microseconds = 0;      // of all units on one thread
  double longest = 0;           // of the thread that has most to do
  double mean = 0;              // of all threads
  double dispatch = 0;          // of starting and joining the threads

  size_t parts() const { return begins.size() - 1; }

  // How much longer the busiest thread works than the average one.
  double imbalance() const { return mean > 0 ? longest / mean : 1.0; }
  double time() const { return dispatch + longest; }
};

// The plan for up to `threads` threads that ends first, or one that takes little longer on fewer.
// Long runs are cut into several parts for each thread, along tiles, so that fast threads can take
// over what slow ones have not begun.
WorkPlan plan_work(const std::vector<WorkGrid>& grids, size_t threads,
                   const DispatchCost& dispatch);

// Work that splits into parts that take about the same time.
struct EvenWork {
  double microseconds;  // of all parts on one thread
  size_t parts;

  // Of the chunk that has most to do.
  double share(size_t chunks) const {
    return parts == 0 ? 0.0
                      : microseconds * static_cast<double>((parts + chunks - 1) / chunks) /
                            static_cast<double>(parts);
  }
};

// How chunk_count and chunk_begin in parallel.h share it, for reports.
WorkPlan plan_evenly(const EvenWork& work, size_t threads, const DispatchCost& dispatch);

// The plans of one packed layer. Finding one takes no lock.
class PlanCache {
 public:
  struct Key {
    int64_t samples;
    size_t threads;
    DispatchCost dispatch;
    int64_t height = 0;  // and width: where not only the number of samples counts
    int64_t width = 0;
    int form = 0;  // of the samples, as the layer numbers them

    bool operator==(const Key& other) const {
      return samples == other.samples && threads == other.threads && dispatch == other.dispatch &&
             height == other.height && width == other.width && form == other.form;
    }
  };

  PlanCache() = default;
  ~PlanCache();
  PlanCache(const PlanCache&) = delete;
  PlanCache& operator=(const PlanCache&) = delete;

  // The plan for the key, from make() if it is not there. Keeps it unless there are many already;
  // the returned one lives as long as the cache or the caller's `spare`.
  template <typename Make>
  const WorkPlan& find(const Key& key, WorkPlan& spare, const Make& make) const {
    if (const WorkPlan* known = lookup(key)) return *known;
    spare = make();
    return keep(key, spare);
  }

 private:
  struct Entry {
    Key key;
    WorkPlan plan;
  };
  static constexpr size_t kSlots = 512;
  static constexpr size_t kProbes = 16;

  static size_t first_slot(const Key& key);
  const WorkPlan* lookup(const Key& key) const;
  const WorkPlan& keep(const Key& key, WorkPlan& plan) const;

  mutable std::array<std::atomic<const Entry*>, kSlots> slots_{};
};

}  // namespace fanin
