// Filling a segment of a convolution's panel. Like panel_core.h, only for translation units of an
// instruction set.
#pragma once

#include "kernels/panel_conv_ops.h"

namespace fanin {
namespace {

// The spans of one vector of a column, prepared for loading. kSpans: their number; 0 if known at
// run time only.
template <typename Loader, int kSpans>
struct Spans {
  const Loader loader;
  int count;
  typename Loader::Span ready[kSpans > 0 ? kSpans : 16];

  Spans(const ConvSource& source, const PixelSpan* spans, int any)
      : loader(source.stride), count(kSpans > 0 ? kSpans : any) {
    for (int i = 0; i < count; ++i) ready[i] = loader.prepare(spans[i]);
  }

  typename Loader::Type load(const float* channel) const {
    typename Loader::Type value = loader.load(channel, ready[0]);
    for (int i = 1; i < (kSpans > 0 ? kSpans : count); ++i)
      value = loader.add(value, channel, ready[i]);
    return value;
  }
};

// Fills one vector of all columns of a tap: all have the same lanes and offsets, which stay in
// registers.
template <typename Loader, int kSpans>
void fill_vector(const ConvSource& source, const PixelSpan* spans, int count,
                 const ConvColumn* column, const ConvColumn* end, int width, float* to) {
  const Spans<Loader, kSpans> ready(source, spans, count);
  // Copies, since the compiler must assume that stores to the panel change referenced objects.
  const float* x = source.x;
  const int64_t channel_stride = source.channel_stride;
  for (; column != end; ++column) {
    const float* channel = x + column->channel * channel_stride;
    Loader::store(to + size_t{column->place} * width, ready.load(channel));
  }
}

// Fills two neighboring vectors in one loop: a segment has few columns of a tap, so the cost of
// starting a loop matters.
template <typename Loader, int kSpans, int kNextSpans>
void fill_pair(const ConvSource& source, const PixelSpan* spans, const ConvColumn* column,
               const ConvColumn* end, int width, float* to) {
  const Spans<Loader, kSpans> ready(source, spans, kSpans);
  const Spans<Loader, kNextSpans> next_ready(source, spans + kSpans, kNextSpans);
  const float* x = source.x;
  const int64_t channel_stride = source.channel_stride;
  for (; column != end; ++column) {
    const float* channel = x + column->channel * channel_stride;
    float* at = to + size_t{column->place} * width;
    Loader::store(at, ready.load(channel));
    Loader::store(at + Loader::kLanes, next_ready.load(channel));
  }
}

// Copies the pixels of a span to their lanes one by one, for strides without a special load.
inline void gather_span(const float* channel, const PixelSpan& span, int64_t stride, float* to) {
  for (uint32_t left = span.lanes; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    to[lane] = channel[span.offset + lane * stride];
  }
}

// Loader, for one instruction set and stride, has: kLanes; Type, a vector; Span, the result of
// prepare() for a PixelSpan; load(channel, span), with zeros in the other lanes; and add(value,
// channel, span), with those of value.
template <typename Loader>
void fill_columns(const ConvSource& source, const ConvColumn* columns, size_t count,
                  const ConvStrips& strips, float* segment) {
  const int width = strips.width, vectors = width / Loader::kLanes;
  for (int strip = 0; strip < strips.count; ++strip)
    for (int i = 0; i < width; ++i) segment[strip * strips.panel_stride + i] = 0.0f;
  const ConvColumn* last = columns + count;
  for (const ConvColumn *first = columns, *end; first != last; first = end) {
    for (end = first; end != last && end->tap == first->tap;) ++end;
    const PixelSpan* spans = source.spans + first->tap * source.spans_per_tap;
    for (int v = 0; v < vectors * strips.count; ++v) {
      float* to = segment + v / vectors * strips.panel_stride + v % vectors * Loader::kLanes;
      const int now = source.counts[v];
      const int next = v % vectors + 1 < vectors ? source.counts[v + 1] : 0;
      // The common numbers of spans, without a loop over them.
      if (now == 1 && next == 1) {
        fill_pair<Loader, 1, 1>(source, spans, first, end, width, to);
      } else if (now == 1 && next == 2) {
        fill_pair<Loader, 1, 2>(source, spans, first, end, width, to);
      } else if (now == 2 && next == 1) {
        fill_pair<Loader, 2, 1>(source, spans, first, end, width, to);
      } else if (now == 2 && next == 2) {
        fill_pair<Loader, 2, 2>(source, spans, first, end, width, to);
      } else {
        if (now == 1)
          fill_vector<Loader, 1>(source, spans, now, first, end, width, to);
        else if (now == 2)
          fill_vector<Loader, 2>(source, spans, now, first, end, width, to);
        else if (now > 2)
          fill_vector<Loader, 0>(source, spans, now, first, end, width, to);
        spans += now;  // 0 behind the tile's last pixel
        continue;
      }
      spans += now + next;
      ++v;
    }
  }
}

}  // namespace
}  // namespace fanin
