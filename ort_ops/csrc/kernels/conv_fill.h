// Filling a segment of a convolution's panel. Like panel_core.h, only for translation units of an
// instruction set.
#pragma once

#include "kernels/conv_ops.h"

namespace fanin {
namespace {

// One vector of all columns of a tap: the pieces of each have the same lanes and offsets, which
// stay in registers. Loader: see fill_columns. kPieces: their number, 0 for any.
template <typename Loader, int kPieces>
void fill_vector(const ConvSource& source, const ConvPiece* pieces, int count,
                 const ConvColumn* column, const ConvColumn* end, int width, float* to) {
  if (kPieces > 0) count = kPieces;
  const Loader loader(source.stride);
  typename Loader::Piece ready[kPieces > 0 ? kPieces : 16];
  for (int i = 0; i < count; ++i) ready[i] = loader.prepare(pieces[i]);
  for (; column != end; ++column) {
    const float* channel = source.x + column->channel * source.channel_stride;
    typename Loader::Type value = loader.load(channel, ready[0]);
    for (int i = 1; i < count; ++i) value = loader.add(value, channel, ready[i]);
    Loader::store(to + size_t{column->place} * width, value);
  }
}

// The pixels of a piece to their lanes, one by one: for strides that no loads are made for.
inline void gather_piece(const float* channel, const ConvPiece& piece, int64_t stride, float* to) {
  for (uint32_t left = piece.lanes; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    to[lane] = channel[piece.offset + lane * stride];
  }
}

// Loader: of one instruction set and stride. kLanes; Type, a vector; Piece, what prepare() makes of
// a ConvPiece; load(channel, piece) with zeros in the other lanes, and add(value, channel, piece)
// with those of value.
template <typename Loader>
void fill_columns(const ConvSource& source, const ConvColumn* columns, size_t count, int width,
                  float* segment) {
  for (int i = 0; i < width; ++i) segment[i] = 0.0f;
  const ConvColumn* last = columns + count;
  for (const ConvColumn *first = columns, *end; first != last; first = end) {
    for (end = first; end != last && end->tap == first->tap;) ++end;
    const ConvPiece* pieces = source.pieces + first->tap * source.pieces_per_tap;
    for (int v = 0; v * Loader::kLanes < width; ++v) {
      float* to = segment + v * Loader::kLanes;
      const int vector_pieces = source.counts[v];
      // The usual numbers without a loop.
      switch (vector_pieces) {
        case 0:
          break;  // beyond the tile's last pixel
        case 1:
          fill_vector<Loader, 1>(source, pieces, 1, first, end, width, to);
          break;
        case 2:
          fill_vector<Loader, 2>(source, pieces, 2, first, end, width, to);
          break;
        default:
          fill_vector<Loader, 0>(source, pieces, vector_pieces, first, end, width, to);
      }
      pieces += vector_pieces;
    }
  }
}

}  // namespace
}  // namespace fanin
