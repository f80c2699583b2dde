// A packed layer as the kernels that serve its batches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/gemm.h"
#include "core/packed_cache.h"

namespace fanin {

template <typename Row, typename Kernel>
class BatchKernels {
 public:
  // For all of `batches`: select(batch) is the row that serves a batch, last(row, batch) the last
  // one that it serves from there on, and pack(row) packs its layout.
  template <typename Select, typename Last, typename Pack>
  BatchKernels(BatchRange batches, const Select& select, const Last& last, const Pack& pack) {
    const int64_t end = std::max<int64_t>(1, batches.max);
    for (int64_t first = std::clamp<int64_t>(batches.min, 1, end);;) {
      const Row& row = select(first);
      // A layout serves all batches of its row, even those for which another would be slightly
      // faster: another copy of the weights would cost more.
      const BatchRange served{first, std::min(end, last(row, first))};
      kernels_.push_back({&row, served, pack(row)});
      if (served.max == end) break;
      first = served.max + 1;
    }
  }

  // A batch outside the declared range is still computed, by the nearest kernel.
  const Kernel& at(int64_t batch) const { return *packed_for(batch).cached.kernel; }
  const Row& row(int64_t batch) const { return *packed_for(batch).row; }
  const std::string& name(int64_t batch) const { return row(batch).name; }

  std::vector<PackedInfo> info() const {
    std::vector<PackedInfo> infos;
    for (const Packed& packed : kernels_)
      infos.push_back(packed.cached.info(packed.row->name, packed.batches, {}));
    return infos;
  }

  bool holds(const CondensedView& view) const {
    return std::all_of(kernels_.begin(), kernels_.end(),
                       [&view](const Packed& packed) { return packed.cached.kernel->holds(view); });
  }

 private:
  struct Packed {
    const Row* row;
    BatchRange batches;
    Cached<Kernel> cached;
  };

  const Packed& packed_for(int64_t batch) const {
    return *std::find_if(kernels_.begin(), kernels_.end() - 1,
                         [batch](const Packed& packed) { return batch <= packed.batches.max; });
  }

  std::vector<Packed> kernels_;  // by rising batch
};

}  // namespace fanin
