#include "kernels/panel_conv_pixels.h"

#include <algorithm>

namespace fanin {
namespace {

// Behind the spans' number: counts of the vectors of a tile.
constexpr size_t kHeaderBytes = 64;
constexpr int kMaxVectors = static_cast<int>(kHeaderBytes - sizeof(int64_t));

// Bits [first, end) of 16.
uint32_t lane_bits(int64_t first, int64_t end) {
  return first < end ? ((1u << end) - 1) & ~((1u << first) - 1) : 0;
}

// Bit i to bit 2 i.
uint32_t spread_bits(uint32_t bits) {
  bits = (bits | bits << 8) & 0x00ff00ff;
  bits = (bits | bits << 4) & 0x0f0f0f0f;
  bits = (bits | bits << 2) & 0x33333333;
  return (bits | bits << 1) & 0x55555555;
}

// The least i >= 0 with start + i * stride >= limit.
int64_t first_from(int64_t start, int64_t stride, int64_t limit) {
  if (start >= limit) return 0;
  return stride == 1 ? limit - start : (limit - start + stride - 1) / stride;
}

}  // namespace

ConvPixels::ConvPixels(const ConvGeometry& geometry, const ConvInput& input)
    : geometry_(geometry), input_(input) {
  if (geometry.is_pointwise()) {
    input_.width *= input_.height;
    input_.height = 1;
  }
  height_ = geometry_.output_size(0, input_.height);
  width_ = geometry_.output_size(1, input_.width);
}

// Runs end with rows of pixels and with vectors.
int64_t ConvPixels::max_runs(int width, int lanes) const {
  return std::min<int64_t>(width, (width - 1) / width_ + 2 + width / lanes);
}

size_t ConvPixels::state_bytes(int width, int lanes) const {
  const size_t runs = static_cast<size_t>(max_runs(width, lanes));
  return kHeaderBytes +
         runs * (sizeof(Run) + static_cast<size_t>(geometry_.taps()) * sizeof(PixelSpan));
}

ConvPixels::Run* ConvPixels::find_runs(const PanelTile& tile, int lanes, uint8_t* counts,
                                       Run* runs) const {
  int64_t image = tile.first / pixels();
  int64_t row = tile.first % pixels() / width_;
  int64_t column = tile.first % width_;
  const int64_t image_size = geometry_.in_channels * channel_size();
  for (int at = 0; at < tile.samples;) {
    const int first = at % lanes;
    const int length =
        static_cast<int>(std::min<int64_t>({width_ - column, lanes - first, tile.samples - at}));
    *runs++ = {image * image_size, row * geometry_.strides[0] - geometry_.pads[0],
               (column - first) * geometry_.strides[1] - geometry_.pads[1], first, first + length};
    ++counts[at / lanes];
    at += length;
    column += length;
    if (column < width_) continue;
    column = 0;
    if (++row < height_) continue;
    row = 0;
    ++image;
  }
  return runs;
}

// The part of a run inside the image, for the tap whose offset in the window is (row, column).
PixelSpan ConvPixels::span(const Run& run, int64_t row, int64_t column) const {
  const int64_t from_row = run.row + row, from_column = run.column + column;
  if (from_row < 0 || from_row >= input_.height) return {0, 0, 0};
  const int64_t stride = geometry_.strides[1];
  const int64_t first = std::max<int64_t>(run.first, first_from(from_column, stride, 0));
  const int64_t end = std::min<int64_t>(run.end, first_from(from_column, stride, input_.width));
  const uint32_t lanes = lane_bits(first, end);
  if (lanes == 0) return {0, 0, 0};
  return {run.image + from_row * input_.width + from_column, lanes, spread_bits(lanes)};
}

void ConvPixels::build(const PanelTile& tile, int lanes, uint8_t* state) const {
  uint8_t* counts = state + sizeof(int64_t);
  std::fill(counts, counts + kMaxVectors, uint8_t{0});
  Run* runs = reinterpret_cast<Run*>(state + kHeaderBytes);
  Run* end = find_runs(tile, lanes, counts, runs);
  *reinterpret_cast<int64_t*>(state) = end - runs;
  PixelSpan* spans = reinterpret_cast<PixelSpan*>(end);
  for (int64_t i = 0; i < geometry_.kernel[0]; ++i)
    for (int64_t j = 0; j < geometry_.kernel[1]; ++j)
      for (const Run* run = runs; run != end; ++run)
        *spans++ = span(*run, i * geometry_.dilations[0], j * geometry_.dilations[1]);
}

ConvSource ConvPixels::source(const float* x, const uint8_t* state) const {
  const int64_t runs = *reinterpret_cast<const int64_t*>(state);
  const uint8_t* spans = state + kHeaderBytes + static_cast<size_t>(runs) * sizeof(Run);
  ConvSource source;
  source.x = x;
  source.channel_stride = channel_size();
  source.stride = stride();
  source.spans = reinterpret_cast<const PixelSpan*>(spans);
  source.spans_per_tap = runs;
  source.counts = state + sizeof(int64_t);
  return source;
}

}  // namespace fanin
