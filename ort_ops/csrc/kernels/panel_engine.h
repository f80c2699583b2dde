// Running a panel layout: tiles of samples, passes over the segments, threads. What a sample is,
// where the panel comes from and where sums go is left to a PanelWork.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/executor.h"
#include "kernels/panel_layout.h"
#include "kernels/panel_ops.h"

namespace fanin {

// Samples that go through the layer together.
struct PanelTile {
  int64_t first;
  int samples;
  int width;  // of the kernel, at least `samples`
};

// The widest tile and its halves down to `min_width`, which take the rest.
std::vector<PanelTile> make_panel_tiles(int64_t samples, int max_width, int min_width);

// One part of a tile's sums, ready to be added.
struct PanelAddend {
  const PanelPart& part;
  const float* segment;
  const float* bias;  // null where the sums go on from what is there
};

// One run of one layer. Threads call it at the same time, for different tiles or blocks.
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

// Floats [rows, columns] of an array whose rows lie `stride` floats apart, to be fetched while so
// many rows of a layer are summed up.
PanelAhead panel_ahead(const float* from, int64_t stride, int64_t rows, int64_t columns,
                       int64_t summed_rows);

class PanelEngine {
 public:
  // Keeps a reference to the layout. `sums_bytes`: of the sums of a pass over the segments, which
  // should stay in L2 while the weights stream through it.
  PanelEngine(const PanelLayout& layout, int max_width, int64_t sums_bytes);

  // Runs all tiles, of which the first is the widest, in up to `chunks` threads at a time.
  void run(const std::vector<PanelTile>& tiles, size_t chunks, const PanelWork& work,
           const Executor& executor) const;

  // Tiles and blocks that can be shared out.
  size_t parts(const std::vector<PanelTile>& tiles) const {
    return tiles.size() * layout_.blocks.size();
  }

 private:
  struct Scratch;
  enum class Panel { kFilled, kToFill, kOneSegment };

  size_t segment_floats(int width) const;
  size_t panel_floats(int width) const;
  size_t sums_floats(int width) const;
  int64_t sums_rows() const;
  bool small_panel(int width) const;
  bool keeps_panel(int width) const;

  void run_tiles(const PanelTile* tiles, size_t count, size_t chunks, const PanelWork& work,
                 const Executor& executor) const;
  void split_tile(const PanelTile& tile, size_t chunks, const PanelWork& work,
                  const Executor& executor) const;
  void fill_panel(const PanelTile& tile, const uint8_t* state, size_t chunks, float* panel,
                  const PanelWork& work, const Executor& executor) const;
  void run_blocks(const PanelTile& tile, size_t begin, size_t end, Panel panel,
                  const Scratch& scratch, const PanelWork& work) const;
  void sum_blocks(const PanelTile& tile, int64_t segment, size_t first, size_t last, const float* x,
                  bool fills_next, float* sums, const PanelWork& work) const;

  const PanelLayout& layout_;
  size_t pass_blocks_;  // blocks whose sums are made in one pass over the segments
};

}  // namespace fanin
