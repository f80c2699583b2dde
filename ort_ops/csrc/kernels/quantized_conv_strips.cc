#include "kernels/quantized_conv_strips.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <stdexcept>

#include "core/aligned_buffer.h"
#include "core/divide_up.h"
#include "core/scratch.h"
#include "kernels/quantized_finish.h"
#include "kernels/transpose_bytes.h"

namespace fanin {
namespace {

// A copy stays in L2, beside the weights.
constexpr int64_t kPatchBytes = 256 * 1024;

// Of the copy for kMinColumns pixels.
constexpr int64_t kMaxPatchBytes = 4 * 1024 * 1024;
constexpr int64_t kMinColumns = 8;

// Pixels of a strip that is read where it is.
constexpr int64_t kInPlacePixels = 64;

// Rows of fewer pixels are transposed together, since a transposed block has 16.
constexpr int64_t kMinTransposedWidth = 32;

int64_t reach(const ConvGeometry& geometry, int axis) {
  return geometry.dilations[axis] * (geometry.kernel[axis] - 1) + 1;
}

bool has_pads(const ConvGeometry& geometry) {
  return std::any_of(std::begin(geometry.pads), std::end(geometry.pads),
                     [](int64_t pad) { return pad > 0; });
}

// The part of so many that is about as large as the others, but a multiple of `grain`.
int64_t even_part(int64_t all, int64_t most, int64_t grain) {
  return std::min(all, divide_up(divide_up(all, divide_up(all, most)), grain) * grain);
}

void copy_bytes(const uint8_t* __restrict from, int64_t count, bool flips, uint8_t* __restrict to) {
  if (flips)
    for (int64_t i = 0; i < count; ++i) to[i] = from[i] ^ 0x80;
  else
    std::memcpy(to, from, static_cast<size_t>(count));
}

void transpose(const uint8_t* from, int64_t from_stride, int64_t rows, int64_t columns, uint8_t* to,
               int64_t to_stride, int64_t element) {
  if (element == 1)
    transpose_bytes(from, from_stride, rows, columns, to, to_stride);
  else
    transpose_floats(reinterpret_cast<const float*>(from), from_stride, rows, columns,
                     reinterpret_cast<float*>(to), to_stride);
}

// Images without rows, where the pixels of one window are those of another, moved.
ConvInput flat_input(const ConvGeometry& geometry, const ConvInput& input, bool channels_last) {
  if (!geometry.is_pointwise()) return input;
  const int64_t pixels = input.height * input.width;
  return channels_last ? ConvInput{1, 1, input.batch * pixels} : ConvInput{input.batch, 1, pixels};
}

}  // namespace

ConvStrips::ConvStrips(const ConvGeometry& geometry, const ConvInput& input, const StripForm& form,
                       int64_t most_pixels)
    : geometry_(geometry),
      input_(flat_input(geometry, input, form.channels_last)),
      form_(form),
      height_(geometry.output_size(0, input_.height)),
      width_(geometry.output_size(1, input_.width)) {
  const double window_bytes = static_cast<double>(geometry.in_channels) *
                              static_cast<double>(input_.width) *
                              static_cast<double>(reach(geometry, 0));
  copies_ = !form.channels_last || form.flips || has_pads(geometry) ||
            (form.margin > 0 && geometry.kernel[0] > 1) ||
            window_bytes > static_cast<double>(std::numeric_limits<uint32_t>::max());
  cut(most_pixels);
  row_strips_ = divide_up(height_, rows_);
  column_strips_ = divide_up(width_, columns_);
}

void ConvStrips::cut(int64_t most_pixels) {
  if (!copies_) {
    row_bytes_ = input_.width * geometry_.in_channels;
    const int64_t most = std::min(most_pixels, kInPlacePixels);
    rows_ = even_part(height_, std::max<int64_t>(1, most / width_), 1);
    columns_ = most < width_ ? even_part(width_, most, kMinColumns) : width_;
    return;
  }
  if (geometry_.kernel[0] > 1) row_step_ = geometry_.dilations[0];
  const int64_t budget = kPatchBytes / geometry_.in_channels;  // pixels
  const int64_t row = patch_columns(width_);
  int64_t columns = std::min(width_, most_pixels);
  if (geometry_.kernel[0] * row > budget) {
    const int64_t room = budget / geometry_.kernel[0] - reach(geometry_, 1);
    const int64_t least = std::max(kMinColumns, reach(geometry_, 1) / geometry_.strides[1]);
    columns = std::min(columns, std::max(least, room / geometry_.strides[1] + 1));
  }
  columns_ = even_part(width_, columns, kMinColumns);
  if (columns_ == width_ && row_step_ == 1) {
    const int64_t rows =
        1 + std::max<int64_t>(0, budget / row - geometry_.kernel[0]) / geometry_.strides[0];
    rows_ = even_part(height_, std::max<int64_t>(1, std::min(rows, most_pixels / width_)), 1);
  }
  row_bytes_ = patch_columns(columns_) * geometry_.in_channels;
  // Else the rows of a window would lie in the same lines of L1.
  if (row_bytes_ % 4096 == 0) row_bytes_ += static_cast<int64_t>(kAlignment);
}

bool ConvStrips::patch_fits(const ConvGeometry& geometry) {
  const double columns = static_cast<double>(kMinColumns * geometry.strides[1]) +
                         2.0 * static_cast<double>(reach(geometry, 1));
  return static_cast<double>(geometry.kernel[0]) * columns *
             static_cast<double>(geometry.in_channels) <=
         static_cast<double>(kMaxPatchBytes);
}

void ConvStrips::check_patch(const ConvGeometry& geometry) {
  if (!patch_fits(geometry))
    throw std::invalid_argument(
        "the window, with its strides and dilations, is too large for this kernel; "
        "i8-conv-taps-scalar takes every window");
}

int64_t ConvStrips::patch_rows(int64_t rows) const {
  return (rows - 1) * geometry_.strides[0] + geometry_.kernel[0];
}

int64_t ConvStrips::patch_columns(int64_t columns) const {
  return (columns - 1) * geometry_.strides[1] + reach(geometry_, 1);
}

ConvStrip ConvStrips::strip(int64_t number) const {
  const int64_t column = number % column_strips_ * columns_;
  const int64_t row = number / column_strips_ % row_strips_ * rows_;
  return {number / (column_strips_ * row_strips_), row, std::min(rows_, height_ - row), column,
          std::min(columns_, width_ - column)};
}

// Of a window of one row. Its last pixel reads furthest.
bool ConvStrips::reads_beyond(const ConvStrip& strip) const {
  if (form_.margin == 0) return false;
  const int64_t rows = input_.batch * input_.height;
  const int64_t row =
      strip.image * input_.height + (strip.row + strip.rows - 1) * geometry_.strides[0];
  const int64_t column = (strip.column + strip.columns - 1) * geometry_.strides[1];
  const int64_t end = (row * input_.width + column + reach(geometry_, 1)) * geometry_.in_channels;
  return end + form_.margin > rows * input_.width * geometry_.in_channels;
}

int64_t ConvStrips::copied_bytes() const {
  return (patch_rows(rows_) - 1) * row_bytes_ + patch_columns(columns_) * geometry_.in_channels;
}

size_t ConvStrips::transposed_bytes() const {
  if (form_.channels_last) return 0;
  return static_cast<size_t>(patch_rows(rows_) * patch_columns(columns_) * geometry_.in_channels);
}

size_t ConvStrips::scratch_bytes() const {
  if (!copies_ && form_.margin == 0) return 0;
  ScratchPlan plan;
  plan.add(transposed_bytes());
  plan.add(static_cast<size_t>(copied_bytes() + form_.margin));
  return plan.total();
}

StripPixels ConvStrips::open(const QuantizedImages& x, const ConvStrip& strip,
                             uint8_t* scratch) const {
  const int64_t channels = geometry_.in_channels, step = geometry_.strides[1] * channels;
  if (!copies_ && !reads_beyond(strip)) {
    const int64_t row = strip.image * input_.height + strip.row * geometry_.strides[0];
    const int64_t column = strip.column * geometry_.strides[1];
    return {static_cast<const uint8_t*>(x.data) + (row * input_.width + column) * channels,
            strip.columns, step, geometry_.strides[0] * row_bytes_};
  }
  ScratchPlan plan;
  plan.add(transposed_bytes());
  uint8_t* patch = scratch + plan.total();
  fill(x, strip, scratch, patch);
  return {patch, strip.columns, step, geometry_.strides[0] * row_bytes_};
}

void ConvStrips::fill(const QuantizedImages& x, const ConvStrip& strip, uint8_t* transposed,
                      uint8_t* patch) const {
  const int64_t channels = geometry_.in_channels, width = input_.width;
  const auto* image =
      static_cast<const uint8_t*>(x.data) + strip.image * channels * input_.height * width;
  const int border = x.zero_point + (form_.flips ? 128 : 0);
  const int64_t first_row = strip.row * geometry_.strides[0] - geometry_.pads[0];
  const int64_t first_column = strip.column * geometry_.strides[1] - geometry_.pads[1];
  const int64_t columns = patch_columns(strip.columns);
  const int64_t begin = std::clamp<int64_t>(first_column, 0, width);
  const int64_t end = std::clamp<int64_t>(first_column + columns, begin, width);
  // Of the patch, before and behind the columns of the image.
  const auto left =
      static_cast<size_t>(std::clamp<int64_t>(begin - first_column, 0, columns) * channels);
  const auto inner = (end - begin) * channels;
  const auto right = static_cast<size_t>(columns * channels - inner) - left;

  // All rows of the image between the patch's first and last one at once.
  const bool together = !form_.channels_last && row_step_ == 1 && input_.height > 1 &&
                        width < kMinTransposedWidth && begin == 0 && end == width;
  const int64_t top = std::clamp<int64_t>(first_row, 0, input_.height);
  if (together) {
    const int64_t bottom =
        std::clamp<int64_t>(first_row + patch_rows(strip.rows), top, input_.height);
    transpose_bytes(image + top * width, input_.height * width, channels, (bottom - top) * width,
                    transposed, channels);
  }
  for (int64_t i = 0; i < patch_rows(strip.rows); ++i) {
    const int64_t row = first_row + i * row_step_;
    uint8_t* to = patch + i * row_bytes_;
    if (row < 0 || row >= input_.height) {
      std::memset(to, border, static_cast<size_t>(columns * channels));
      continue;
    }
    std::memset(to, border, left);
    uint8_t* at = to + left;
    if (form_.channels_last) {
      copy_bytes(image + (row * width + begin) * channels, inner, form_.flips, at);
    } else if (together) {
      copy_bytes(transposed + (row - top) * width * channels, inner, form_.flips, at);
    } else {
      uint8_t* first = form_.flips ? transposed : at;
      transpose_bytes(image + row * width + begin, input_.height * width, channels, end - begin,
                      first, channels);
      if (form_.flips) copy_bytes(first, inner, true, at);
    }
    std::memset(at + inner, border, right);
  }
}

StripOutputs::StripOutputs(const ConvStrips& strips, int64_t out_channels, bool channels_last,
                           void* y, const QuantizedEpilogue& epilogue)
    : strips_(strips),
      out_channels_(out_channels),
      channels_last_(channels_last),
      y_(static_cast<uint8_t*>(y)),
      residual_(static_cast<const uint8_t*>(epilogue.residual)),
      element_(element_bytes(epilogue.type)) {}

size_t StripOutputs::scratch_bytes() const {
  if (channels_last_) return 0;
  const auto bytes = static_cast<size_t>(strips_.most_pixels() * out_channels_ * element_);
  ScratchPlan plan;
  plan.add(bytes);
  if (residual_) plan.add(bytes);
  return plan.total();
}

StripOutputs::Place StripOutputs::begin(const ConvStrip& strip, int64_t first, int64_t last,
                                        uint8_t* scratch) const {
  if (channels_last_) return in_place(strip);
  ScratchPlan plan;
  plan.add(static_cast<size_t>(strips_.most_pixels() * out_channels_ * element_));
  uint8_t* residual = nullptr;
  if (residual_) {
    residual = scratch + plan.total();
    transpose(residual_ + at(strip, first) * element_, strips_.image_pixels(), last - first,
              strip.pixels(), residual + first * element_, out_channels_, element_);
  }
  return {scratch, residual, out_channels_, 1};
}

void StripOutputs::end(const ConvStrip& strip, int64_t first, int64_t last,
                       const uint8_t* scratch) const {
  if (channels_last_) return;
  transpose(scratch + first * element_, out_channels_, strip.pixels(), last - first,
            y_ + at(strip, first) * element_, strips_.image_pixels(), element_);
}

StripOutputs::Place StripOutputs::in_place(const ConvStrip& strip) const {
  const int64_t first = channels_last_ ? strips_.first_pixel(strip) * out_channels_ : at(strip, 0);
  const uint8_t* residual = residual_ ? residual_ + first * element_ : nullptr;
  if (channels_last_) return {y_ + first * element_, residual, out_channels_, 1};
  return {y_ + first * element_, residual, 1, strips_.image_pixels()};
}

int64_t StripOutputs::at(const ConvStrip& strip, int64_t output) const {
  const int64_t pixel = strips_.first_pixel(strip) - strip.image * strips_.image_pixels();
  return (strip.image * out_channels_ + output) * strips_.image_pixels() + pixel;
}

}  // namespace fanin
