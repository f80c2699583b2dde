// The weights of a convolution of int8, with columns in the order of images whose channels are the
// last axis.
#pragma once

#include <cstdint>
#include <vector>

#include "core/condensed.h"
#include "core/conv_geometry.h"

namespace fanin {

// Column (row, column, channel) of the window has the number row * segment + column * step +
// channel. The channels of all groups are counted together, so that a filter simply has no weights
// in those of other groups.
struct ConvColumnOrder {
  int64_t step;     // from one column of the window to the next
  int64_t segment;  // from one row to the next

  // With the distances of an image: with dilations, pixels between two columns count as well.
  static ConvColumnOrder of_image(const ConvGeometry& geometry);

  // Without gaps.
  static ConvColumnOrder dense(const ConvGeometry& geometry);
};

class ConvColumns {
 public:
  // Keeps a pointer to the rows of the valid `view`. The window must have kMaxSize columns at most.
  // Throws std::bad_alloc.
  ConvColumns(const CondensedView& view, const ConvGeometry& geometry,
              const ConvColumnOrder& order);

  CondensedView view() const;

 private:
  CondensedView view_;
  std::vector<int8_t> values_;
  std::vector<int32_t> indices_;
};

}  // namespace fanin
