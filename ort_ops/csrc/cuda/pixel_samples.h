// The samples of CondensedConv for the expand kernel: pixels of y, whose columns are the positions
// of the window. x, y and residual are [batch, channels, height, width].
//
// In shared memory, a chunk has the pixels of each column side by side, as x has them: 16 bits are
// transposed when the tensor cores' operands are loaded. The gap after a column distributes those
// loads over all banks.
#pragma once

#include <cstdint>

#include "cuda/expand_share.h"
#include "cuda/types.h"

namespace fanin::cuda {

// The position of a column: the channel of its group, and row and column from the window's corner.
struct alignas(16) ConvColumn {
  int32_t channel;
  int32_t row;
  int32_t column;
  int32_t unused;
};

struct ExpandConvArgs : ExpandArgs {
  const ConvColumn* columns;  // [in_features]
  int32_t in_channels;
  int32_t height, width;
  int32_t out_pixels;  // of an image
  int32_t out_width;
  int32_t strides[2];
  int32_t pads[2];  // top, left
  bool gated;       // by what follows, see Gate
  float gate_scale;
  float gate_shift;

  FANIN_INLINE int64_t plane() const { return static_cast<int64_t>(height) * width; }
  FANIN_INLINE int64_t inputs() const { return batch / out_pixels * in_channels * plane(); }
};

inline constexpr int64_t pixel_chunk_bytes(int64_t tile, int64_t bytes) {
  return ExpandShape::kChunkBytes / bytes * (tile * bytes + (bytes == 2 ? 16 : 32));
}

// kVectorX: a window of one pixel with stride 1 and without pads, and 16 bytes of pixels lie in one
// image at a multiple of 16 bytes.
template <typename T, int kSamples, bool kVectorX>
class PixelSamples : ExpandTile<T> {
  using Tile = ExpandTile<T>;
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kPixels = (kVectorX ? 16 : 4) / kSize;  // of an item
  static constexpr int kRowItems = kSamples / kPixels;
  static constexpr int kPitch =
      static_cast<int>(pixel_chunk_bytes(kSamples, kSize)) / Tile::kColumns;
  static_assert(kPitch % 128 == (kSize == 2 ? 16 : 32) || kSamples < 64, "no bank conflicts");

  // What a pixel of y reads. Without such a pixel, no row is inside the image.
  struct Pixel {
    int64_t corner;  // of the window, in x
    int32_t top, left;
  };

 public:
  using X = T;
  using Args = ExpandConvArgs;
  static constexpr int kTile = kSamples;
  static constexpr int kBytes = Tile::kColumns * kPitch;
  static constexpr int kItems = Tile::kColumns * kRowItems;
  // Loads that do not wait for each other.
  static constexpr int kItemsAtOnce = kVectorX || kSize == 4 ? 1 : 4;

  // A thread copies items of the same pixels: the block has a multiple of kRowItems threads.
  template <typename Context>
  FANIN_INLINE PixelSamples(const Context& context, const Args& args, const ExpandShare& share,
                            int64_t first)
      : first_(first) {
    FANIN_UNROLL
    for (int j = 0; j < (kVectorX ? 1 : kPixels); ++j)
      pixels_[j] = pixel_of(args, share.group, first + context.thread() % kRowItems * kPixels + j);
  }

  FANIN_INLINE int64_t first() const { return first_; }

  template <typename Context>
  FANIN_INLINE void copy(const Context& context, const Args& args, int item, int chunk,
                         int to) const {
    const int column = chunk * Tile::kColumns + item / kRowItems;
    to += item / kRowItems * kPitch + item % kRowItems * (kPixels * kSize);
    const bool used = column < args.in_features;
    if constexpr (kVectorX) {
      const bool inside = used && pixels_[0].top >= 0;
      context.template copy_async16<X>(args.x, args.inputs(),
                                       inside ? pixels_[0].corner + column * args.plane() : 0,
                                       inside ? kPixels : 0, to);
    } else {
      const ConvColumn at =
          context.template global<ConvColumn>(args.columns, args.in_features)[used ? column : 0];
      const int64_t offset =
          at.channel * args.plane() + static_cast<int64_t>(at.row) * args.width + at.column;
      if constexpr (kSize == 4) {
        const bool inside = used && is_inside(args, pixels_[0], at);
        context.copy_async4(args.x, args.inputs(), inside ? pixels_[0].corner + offset : 0, inside,
                            to);
      } else {
        const auto x = context.template global<X>(args.x, args.inputs());
        Raw<4> both{{0}};
        FANIN_UNROLL
        for (int j = 0; j < kPixels; ++j)
          if (used && is_inside(args, pixels_[j], at))
            both.words[0] |= stored_bits(x[pixels_[j].corner + offset]) << (16 * j);
        context.template shared<Raw<4>>(to, 1).store(0, both);
      }
    }
  }

  template <int kGroups, typename Context>
  static FANIN_INLINE Raw<8 * kGroups> operands(const Context& context, int base, int k,
                                                int group) {
    const int lane = context.thread() % 32;
    if constexpr (kSize == 2) {
      static_assert(kGroups == 2, "tiles of at least 16 pixels");
      // A lane names 16 bytes of a column: of all columns for eight pixels, then for the next.
      const int row = base + (k * Tile::kStepColumns + lane % 16) * kPitch +
                      (group * 8 + lane / 16 * 8) * kSize;
      return context.load_transposed(row);
    } else {
      Raw<8 * kGroups> result;
      FANIN_UNROLL
      for (int i = 0; i < 2 * kGroups; ++i) {
        const int column = k * Tile::kStepColumns + i % 2 * 4 + lane % 4;
        const int pixel = (group + i / 2) * 8 + lane / 4;
        result.words[i] = context.template shared<Raw<4>>(base, kBytes / 4)
                              .load(column * (kPitch / 4) + pixel)
                              .words[0];
      }
      return result;
    }
  }

  template <typename Context>
  static FANIN_INLINE float x_at(const Context& context, const Args& args, int group,
                                 int64_t sample, int column) {
    const ConvColumn at =
        context.template global<ConvColumn>(args.columns, args.in_features)[column];
    const Pixel pixel = pixel_of(args, group, sample);
    if (!is_inside(args, pixel, at)) return 0.0f;
    const int64_t offset =
        at.channel * args.plane() + static_cast<int64_t>(at.row) * args.width + at.column;
    return widen(context.template global<X>(args.x, args.inputs())[pixel.corner + offset]);
  }

  // Outputs of neighboring threads lie side by side: those of neighboring pixels.
  static FANIN_INLINE int sample_of(int item, int) { return item % kTile; }
  static FANIN_INLINE int row_of(int item, int) { return item / kTile; }
  static FANIN_INLINE int64_t output_at(const Args& args, int64_t sample, int64_t output) {
    const auto all = static_cast<uint32_t>(sample), pixels = static_cast<uint32_t>(args.out_pixels);
    return (all / pixels * static_cast<int64_t>(args.out_features) + output) * pixels +
           all % pixels;
  }
  template <typename Context>
  static FANIN_INLINE float activated(const Context& context, const Args& args, float value) {
    value = clipped(value, args.clip_min, args.clip_max);
    if (!args.gated) return value;
    return value * clipped(context.fma(value, args.gate_scale, args.gate_shift), 0.0f, 1.0f);
  }

 private:
  static FANIN_INLINE Pixel pixel_of(const Args& args, int group, int64_t sample) {
    if (sample >= args.batch) return {0, INT32_MIN, 0};
    const auto all = static_cast<uint32_t>(sample);
    const uint32_t image = all / static_cast<uint32_t>(args.out_pixels);
    const int pixel = static_cast<int>(all % static_cast<uint32_t>(args.out_pixels));
    Pixel result;
    result.top = pixel / args.out_width * args.strides[0] - args.pads[0];
    result.left = pixel % args.out_width * args.strides[1] - args.pads[1];
    const int64_t channel =
        static_cast<int64_t>(image) * args.in_channels + args.in_channels / args.groups * group;
    result.corner =
        channel * args.plane() + static_cast<int64_t>(result.top) * args.width + result.left;
    return result;
  }

  static FANIN_INLINE bool is_inside(const Args& args, const Pixel& pixel, const ConvColumn& at) {
    return static_cast<uint32_t>(pixel.top + at.row) < static_cast<uint32_t>(args.height) &&
           static_cast<uint32_t>(pixel.left + at.column) < static_cast<uint32_t>(args.width);
  }

  int64_t first_;
  Pixel pixels_[kVectorX ? 1 : kPixels];
};

}  // namespace fanin::cuda
