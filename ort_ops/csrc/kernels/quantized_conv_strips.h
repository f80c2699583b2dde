// The output pixels of a convolution in strips, each with the part of an image that it reads as
// kernels read it: channels last, of their type, with a border of zero points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/quantized_conv.h"

namespace fanin {

// Some rows of output pixels, or a part of one row.
struct ConvStrip {
  int64_t image;
  int64_t row;
  int64_t rows;
  int64_t column;
  int64_t columns;

  int64_t pixels() const { return rows * columns; }
};

// Where a strip's windows begin.
struct StripPixels {
  const uint8_t* first;
  int64_t columns;      // of the strip
  int64_t column_step;  // bytes from the window of one pixel to that of its neighbor
  int64_t row_step;

  // Writes the windows of `count` pixels from number `pixel` on.
  void windows(int64_t pixel, int count, const uint8_t** to) const {
    int64_t row = pixel / columns, column = pixel % columns;
    for (int i = 0; i < count; ++i) {
      to[i] = first + row * row_step + column * column_step;
      if (++column == columns) {
        column = 0;
        ++row;
      }
    }
  }
};

// What of the images and the kernel decides whether a strip is copied.
struct StripForm {
  bool channels_last = true;
  bool flips = false;  // the kernel reads the other one of uint8 and int8
  // Bytes that the kernel reads behind the last column of a row of the window.
  int64_t margin = 0;
};

class ConvStrips {
 public:
  // The most pixels of a strip; those that are copied may have fewer.
  static constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

  // The input must be valid for the geometry, and the patch of the geometry must fit.
  ConvStrips(const ConvGeometry& geometry, const ConvInput& input, const StripForm& form,
             int64_t most_pixels);

  // Whether what a few pixels read takes a reasonable amount of memory; if not, no kernel that
  // copies serves the layer.
  static bool patch_fits(const ConvGeometry& geometry);

  // Throws std::invalid_argument if it does not.
  static void check_patch(const ConvGeometry& geometry);

  int64_t count() const { return input_.batch * row_strips_ * column_strips_; }
  int64_t most_pixels() const { return rows_ * columns_; }  // of a strip
  ConvStrip strip(int64_t number) const;

  int64_t image_pixels() const { return height_ * width_; }

  // The strip's first pixel in all images.
  int64_t first_pixel(const ConvStrip& strip) const {
    return (strip.image * height_ + strip.row) * width_ + strip.column;
  }

  // Bytes from one row of a window to the next.
  int64_t pitch() const { return (row_step_ == 1 ? geometry_.dilations[0] : 1) * row_bytes_; }

  // Whether every strip is copied, and the bytes of a copy.
  bool copies() const { return copies_; }
  int64_t copied_bytes() const;

  // Memory that open() needs.
  size_t scratch_bytes() const;

  // The strip's windows, in x or copied to `scratch`. x is of the constructor's form.
  StripPixels open(const QuantizedImages& x, const ConvStrip& strip, uint8_t* scratch) const;

 private:
  int64_t patch_rows(int64_t rows) const;
  int64_t patch_columns(int64_t columns) const;
  size_t transposed_bytes() const;
  void cut(int64_t most_pixels);
  bool reads_beyond(const ConvStrip& strip) const;
  void fill(const QuantizedImages& x, const ConvStrip& strip, uint8_t* transposed,
            uint8_t* patch) const;

  ConvGeometry geometry_;
  ConvInput input_;
  StripForm form_;
  bool copies_;
  int64_t height_;  // of the output
  int64_t width_;
  int64_t rows_ = 1;  // of a strip
  int64_t columns_ = 1;
  int64_t row_strips_;
  int64_t column_strips_;
  int64_t row_step_ = 1;   // image rows from one row of a copy to the next
  int64_t row_bytes_ = 0;  // from one row of x, or of a copy, to the next
};

// The outputs of a strip, channels last: in y, or beside it.
class StripOutputs {
 public:
  // y and the residual have the order of axes of the strips' form.
  StripOutputs(const ConvStrips& strips, int64_t out_channels, bool channels_last, void* y,
               const QuantizedEpilogue& epilogue);

  // Memory that begin() and end() need.
  size_t scratch_bytes() const;

  struct Place {
    uint8_t* y;               // of the strip's first pixel and output 0
    const uint8_t* residual;  // likewise, or null
    int64_t stride;           // elements from one pixel to the next
    int64_t output_stride;    // from one output to the next
  };

  // For outputs first to last - 1, which lie side by side.
  Place begin(const ConvStrip& strip, int64_t first, int64_t last, uint8_t* scratch) const;

  // Moves these outputs to y.
  void end(const ConvStrip& strip, int64_t first, int64_t last, const uint8_t* scratch) const;

  // For outputs that need not lie side by side.
  Place in_place(const ConvStrip& strip) const;

 private:
  int64_t at(const ConvStrip& strip, int64_t output) const;  // element of y, channels first

  const ConvStrips& strips_;
  int64_t out_channels_;
  bool channels_last_;
  uint8_t* y_;
  const uint8_t* residual_;
  int64_t element_;  // bytes of an element of y
};

}  // namespace fanin
