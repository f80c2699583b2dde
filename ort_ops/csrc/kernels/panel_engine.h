// Running a panel layout: tiles of samples, passes over the segments, threads. What a sample is,
// where the panel comes from and where sums go is left to a PanelWork.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/executor.h"
#include "core/work_plan.h"
#include "kernels/panel_layout.h"
#include "kernels/panel_ops.h"

namespace fanin {

// Samples that go through the layer together.
struct PanelTile {
  int64_t first;
  int samples;
  int width;  // of the kernel, at least `samples`
};

// The tiles of a run: all of full width, but for up to two narrower ones that take the rest.
struct PanelTiles {
  int64_t full = 0;
  int full_width = 0;
  std::vector<PanelTile> tails;

  int64_t count() const { return full + static_cast<int64_t>(tails.size()); }
  int widest() const { return full > 0 ? full_width : tails[0].width; }
  PanelTile operator[](int64_t tile) const {
    if (tile < full) return {tile * full_width, full_width, full_width};
    return tails[static_cast<size_t>(tile - full)];
  }
};

// Tiles of the maximal width, and one of the least of its halves that takes the rest.
PanelTiles make_panel_tiles(int64_t samples, int max_width, int min_width);

// One part of a tile's sums, ready to be added.
struct PanelAddend {
  const PanelPart& part;
  const float* segment;
  const float* bias;  // null where the sums go on from what is there
};

// One run of one layer. Threads call it at the same time, for different tiles, blocks or segments.
class PanelWork {
 public:
  virtual ~PanelWork() = default;

  // Memory for what begin() finds out about a tile.
  virtual size_t state_bytes() const { return 0; }
  virtual void begin(const PanelTile& /*tile*/, uint8_t* /*state*/) const {}

  // Writes a segment of the tile's panel, [1 + segment_columns][width], first a column of zeros.
  virtual void fill(const PanelTile& tile, const uint8_t* state, int64_t segment,
                    float* to) const = 0;

  // What fill() will read, to be fetched while `rows` rows are summed up.
  virtual PanelAhead input_ahead(const PanelTile&, int64_t /*segment*/, int64_t /*rows*/) const {
    return {};
  }

  // Adds a segment to a block's sums, [outputs + 1][width].
  virtual void add(const PanelTile& tile, const PanelBlock& block, const PanelAddend& addend,
                   float* sums, PanelAhead& ahead) const = 0;

  // The same with the last segment, after which the sums go to the output.
  virtual void finish(const PanelTile& tile, const PanelBlock& block, const PanelAddend& addend,
                      float* sums) const = 0;
};

// Bytes [rows, bytes] of an array whose rows lie `stride` bytes apart, to be fetched while so many
// rows of a layer are summed up.
PanelAhead panel_ahead(const void* from, int64_t stride, int64_t rows, int64_t bytes,
                       int64_t summed_rows);

// What the time of a run is planned with, in microseconds.
struct PanelRates {
  double weight;  // for a multiply-add
  double column;  // for filling a column of the panel for one sample
};

// How a layout is gone through: so many blocks of rows in one pass over the segments.
class PanelEngine {
 public:
  // Keeps a reference to the layout. `sums_bytes`: of the sums of a pass over the segments, which
  // should stay in L2 while the weights stream through it.
  PanelEngine(const PanelLayout& layout, int max_width, int64_t sums_bytes);

  // The work of a run, in which `columns` columns of the panel are filled; the rates are those of
  // tiles of the widest kind.
  WorkGrid grid(const PanelTiles& tiles, int widest, const PanelRates& rates,
                int64_t columns) const;

  // A plan with the best of all widths of tiles from min_width to max_width: where there are fewer
  // wide tiles than threads, each thread has to fill less of the panel with narrow ones.
  WorkPlan plan(int64_t samples, int max_width, int min_width, const PanelRates& rates,
                int64_t columns, size_t threads, const DispatchCost& dispatch) const;

  const PanelLayout& layout() const { return layout_; }
  size_t pass_blocks() const { return pass_blocks_; }

 private:
  const PanelLayout& layout_;
  size_t pass_blocks_;
};

// A layer, or a group of one, and what runs through it.
struct PanelJob {
  const PanelEngine* engine;
  const PanelWork* work;
};

// Runs the tiles through all jobs, as planned from the jobs' grids in this order.
void run_panels(const PanelJob* jobs, size_t count, const PanelTiles& tiles, const WorkPlan& plan,
                const Executor& executor);

}  // namespace fanin
