// Device layouts of a condensed layer, each built on the host as one block of bytes that is
// then copied to the device.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "core/condensed.h"
#include "cuda/panel_kernel.h"
#include "cuda/stream_kernel.h"

namespace fanin::cuda {

// Consecutive arrays, each aligned to 256 bytes like device allocations.
struct Blob {
  std::vector<unsigned char> bytes;

  // Appends `size` zero bytes; returns their offset.
  int64_t add(int64_t size);

  template <typename T>
  T* at(int64_t offset) {
    return reinterpret_cast<T*>(bytes.data() + offset);
  }
};

// Outputs with weights first, then the others, both in ascending order: results of neighboring rows
// lie side by side, and outputs without weights cost no time.
std::vector<int32_t> order_of_outputs(const CondensedView& view);

// Appends an array to the blob; returns its offset.
template <typename T>
int64_t append(const std::vector<T>& array, Blob& blob) {
  const size_t size = array.size() * sizeof(T);
  const int64_t offset = blob.add(static_cast<int64_t>(size));
  if (size > 0) std::memcpy(blob.at<unsigned char>(offset), array.data(), size);
  return offset;
}

// The same with the biases of a layer.
int64_t append_bias(const CondensedView& view, Blob& blob);

// Layers with more columns have 32-bit indices.
inline constexpr int64_t kMaxColumns16 = 65536;

// Converts a count to 32 bits. Throws std::length_error with `what`, the counted items: "weights".
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

  // The part of the arguments that depends on the layer alone; `base` is the address of the blob.
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
