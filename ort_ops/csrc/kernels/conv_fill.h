// Filling a segment of a convolution's panel. Like panel_core.h, only for translation units of an
// instruction set.
#pragma once

#include "kernels/conv_ops.h"

namespace fanin {
namespace {

// The pieces of one vector of a column, made ready. kPieces: their number, 0 for any.
template <typename Loader, int kPieces>
struct Pieces {
  const Loader loader;
  int count;
  typename Loader::Piece ready[kPieces > 0 ? kPieces : 16];

  Pieces(const ConvSource& source, const ConvPiece* pieces, int any)
      : loader(source.stride), count(kPieces > 0 ? kPieces : any) {
    for (int i = 0; i < count; ++i) ready[i] = loader.prepare(pieces[i]);
  }

  typename Loader::Type load(const float* channel) const {
    typename Loader::Type value = loader.load(channel, ready[0]);
    for (int i = 1; i < (kPieces > 0 ? kPieces : count); ++i)
      value = loader.add(value, channel, ready[i]);
    return value;
  }
};

// One vector of all columns of a tap: the pieces of each have the same lanes and offsets, which
// stay in registers.
template <typename Loader, int kPieces>
void fill_vector(const ConvSource& source, const ConvPiece* pieces, int count,
                 const ConvColumn* column, const ConvColumn* end, int width, float* to) {
  const Pieces<Loader, kPieces> ready(source, pieces, count);
  // Copies, since stores to the panel could change what a reference leads to.
  const float* x = source.x;
  const int64_t channel_stride = source.channel_stride;
  for (; column != end; ++column) {
    const float* channel = x + column->channel * channel_stride;
    Loader::store(to + size_t{column->place} * width, ready.load(channel));
  }
}

// Two vectors that stand side by side: a segment has few columns of a tap, so that beginning and
// ending a loop counts.
template <typename Loader, int kPieces, int kNextPieces>
void fill_pair(const ConvSource& source, const ConvPiece* pieces, const ConvColumn* column,
               const ConvColumn* end, int width, float* to) {
  const Pieces<Loader, kPieces> ready(source, pieces, kPieces);
  const Pieces<Loader, kNextPieces> next_ready(source, pieces + kPieces, kNextPieces);
  const float* x = source.x;
  const int64_t channel_stride = source.channel_stride;
  for (; column != end; ++column) {
    const float* channel = x + column->channel * channel_stride;
    float* at = to + size_t{column->place} * width;
    Loader::store(at, ready.load(channel));
    Loader::store(at + Loader::kLanes, next_ready.load(channel));
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
void fill_columns(const ConvSource& source, const ConvColumn* columns, size_t count,
                  const ConvStrips& strips, float* segment) {
  const int width = strips.width, vectors = width / Loader::kLanes;
  for (int strip = 0; strip < strips.count; ++strip)
    for (int i = 0; i < width; ++i) segment[strip * strips.panel_stride + i] = 0.0f;
  const ConvColumn* last = columns + count;
  for (const ConvColumn *first = columns, *end; first != last; first = end) {
    for (end = first; end != last && end->tap == first->tap;) ++end;
    const ConvPiece* pieces = source.pieces + first->tap * source.pieces_per_tap;
    for (int v = 0; v < vectors * strips.count; ++v) {
      float* to = segment + v / vectors * strips.panel_stride + v % vectors * Loader::kLanes;
      const int now = source.counts[v];
      const int next = v % vectors + 1 < vectors ? source.counts[v + 1] : 0;
      // The usual numbers without a loop.
      if (now == 1 && next == 1) {
        fill_pair<Loader, 1, 1>(source, pieces, first, end, width, to);
      } else if (now == 1 && next == 2) {
        fill_pair<Loader, 1, 2>(source, pieces, first, end, width, to);
      } else if (now == 2 && next == 1) {
        fill_pair<Loader, 2, 1>(source, pieces, first, end, width, to);
      } else if (now == 2 && next == 2) {
        fill_pair<Loader, 2, 2>(source, pieces, first, end, width, to);
      } else {
        if (now == 1)
          fill_vector<Loader, 1>(source, pieces, now, first, end, width, to);
        else if (now == 2)
          fill_vector<Loader, 2>(source, pieces, now, first, end, width, to);
        else if (now > 2)
          fill_vector<Loader, 0>(source, pieces, now, first, end, width, to);
        pieces += now;  // 0 behind the tile's last pixel
        continue;
      }
      pieces += now + next;
      ++v;
    }
  }
}

}  // namespace
}  // namespace fanin
