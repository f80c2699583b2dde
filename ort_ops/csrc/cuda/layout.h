// The two device layouts of a condensed layer, made on the host as one block of bytes that is then
// copied as it is.
#pragma once

#include <cstdint>
#include <vector>

#include "core/condensed.h"
#include "cuda/panel_kernel.h"
#include "cuda/stream_kernel.h"

namespace fanin::cuda {

// Arrays one after the other, each at a multiple of 256 bytes as device allocations are.
struct Blob {
  std::vector<unsigned char> bytes;

  // Room for `size` bytes of zeros; where they begin.
  int64_t add(int64_t size);

  template <typename T>
  T* at(int64_t offset) {
    return reinterpret_cast<T*>(bytes.data() + offset);
  }
};

// Layers with more columns have indices of 32 bits.
inline constexpr int64_t kMaxColumns16 = 65536;

// A number that a layout holds in 32 bits. Throws std::length_error; `what` is counted: "weights".
int32_t counted(int64_t value, const char* what);

// Chunks of 16 bytes of values in the order of the stored rows, and their columns. See
// stream_kernel.h.
struct StreamLayout {
  ValueType value_type = ValueType::kFloat32;
  int index_bytes = 2;
  int64_t in_features = 0;
  int64_t out_features = 0;
  int64_t active = 0;
  int64_t chunks = 0;  // of a row
  double padding = 1.0;
  int64_t values = 0, indices = 0, rows = 0, bias = 0;  // offsets in the blob

  // The part of the arguments that depends on the layer alone; `base` is where the blob lies.
  StreamArgs arguments(const void* base) const;
};

// Throws std::bad_alloc, std::length_error for a layer that 32-bit counters do not address.
StreamLayout pack_stream(const CondensedView& view, Blob& blob);

// How the columns are cut: parts of at most `columns`, shared by the blocks of a cluster.
struct PanelCut {
  int64_t columns = PanelShape::kPieceColumns;  // a multiple of them
  int64_t parts = 1;
  int64_t cluster = 1;
};

// Bands of 32 rows, in every part sorted into groups of four. See panel_kernel.h.
struct PanelLayout {
  int64_t in_features = 0;
  int64_t out_features = 0;
  int64_t units = 0;
  int64_t bands = 0;
  PanelCut cut;
  double padding = 1.0;
  int64_t weights = 0, ends = 0, places = 0, outputs = 0, bias = 0;

  PanelArgs arguments(const void* base) const;
};

// Throws as pack_stream.
PanelLayout pack_panel(const CondensedView& view, const PanelCut& cut, Blob& blob);

}  // namespace fanin::cuda
