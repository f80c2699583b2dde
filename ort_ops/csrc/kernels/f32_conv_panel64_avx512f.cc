#include "kernels/conv_fill.h"
#include "kernels/conv_tables.h"
#include "kernels/panel_avx2_vector.h"
#include "kernels/panel_avx512_vector.h"
#include "kernels/panel_core.h"

namespace fanin {
namespace {

// Masked loads touch nothing outside the image, and put pieces of several rows together.
template <int kVectorLanes>
struct Loads {
  static constexpr int kLanes = kVectorLanes;  // 8 or 16 of the register's
  using Type = __m512;
  static void store(float* to, Type value) {
    if (kLanes == 16)
      _mm512_store_ps(to, value);
    else
      _mm256_store_ps(to, _mm512_castps512_ps256(value));
  }
};

template <int kVectorLanes>
struct Contiguous : Loads<kVectorLanes> {
  struct Piece {
    int64_t offset;
    __mmask16 lanes;
  };
  explicit Contiguous(int64_t) {}
  static Piece prepare(const ConvPiece& piece) {
    return {piece.offset, static_cast<__mmask16>(piece.lanes)};
  }
  static __m512 load(const float* channel, const Piece& piece) {
    return _mm512_maskz_loadu_ps(piece.lanes, channel + piece.offset);
  }
  static __m512 add(__m512 value, const float* channel, const Piece& piece) {
    return _mm512_mask_loadu_ps(value, piece.lanes, channel + piece.offset);
  }
};

template <int kVectorLanes>
struct EverySecond : Loads<kVectorLanes> {
  struct Piece {
    int64_t offset;
    __mmask16 low, high, lanes;
  };
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  explicit EverySecond(int64_t) {}
  static Piece prepare(const ConvPiece& piece) {
    return {piece.offset, static_cast<__mmask16>(piece.spread),
            static_cast<__mmask16>(piece.spread >> 16), static_cast<__mmask16>(piece.lanes)};
  }
  __m512 load(const float* channel, const Piece& piece) const {
    const float* from = channel + piece.offset;
    return _mm512_permutex2var_ps(_mm512_maskz_loadu_ps(piece.low, from), even,
                                  _mm512_maskz_loadu_ps(piece.high, from + 16));
  }
  __m512 add(__m512 value, const float* channel, const Piece& piece) const {
    return _mm512_mask_mov_ps(value, piece.lanes, load(channel, piece));
  }
};

template <int kVectorLanes>
struct Gathered : Loads<kVectorLanes> {
  using Piece = ConvPiece;
  const int64_t stride;
  explicit Gathered(int64_t pixels) : stride(pixels) {}
  static Piece prepare(const ConvPiece& piece) { return piece; }
  __m512 load(const float* channel, const Piece& piece) const {
    return add(_mm512_setzero_ps(), channel, piece);
  }
  __m512 add(__m512 value, const float* channel, const Piece& piece) const {
    alignas(64) float lanes[16];
    _mm512_store_ps(lanes, value);
    gather_piece(channel, piece, stride, lanes);
    return _mm512_load_ps(lanes);
  }
};

template <int kLanes>
void fill_lanes(const ConvSource& source, const ConvColumn* columns, size_t count, int width,
                float* segment) {
  switch (source.stride) {
    case 1:
      return fill_columns<Contiguous<kLanes>>(source, columns, count, width, segment);
    case 2:
      return fill_columns<EverySecond<kLanes>>(source, columns, count, width, segment);
    default:
      return fill_columns<Gathered<kLanes>>(source, columns, count, width, segment);
  }
}

void fill(const ConvSource& source, const ConvColumn* columns, size_t count, int width,
          float* segment) {
  if (width == 8) return fill_lanes<8>(source, columns, count, width, segment);
  fill_lanes<16>(source, columns, count, width, segment);
}

void sum(const PanelPart& part, const float* segment, const float* bias, int width, float* sums,
         PanelAhead& ahead) {
  switch (width) {
    case 8:
      return sum_part<Avx2, 1, 8>(part, segment, bias, sums, ahead);
    case 16:
      return sum_part<Avx512, 1, 8>(part, segment, bias, sums, ahead);
    case 32:
      return sum_part<Avx512, 2, 8>(part, segment, bias, sums, ahead);
    default:
      return sum_part<Avx512, 4, 4>(part, segment, bias, sums, ahead);
  }
}

template <typename Vector, int kVectors, int kRows>
void finish_part(const PanelPart& part, const float* segment, const float* bias, float* sums,
                 const ConvOutput& output) {
  PanelAhead none;
  sum_part<Vector, kVectors, kRows>(part, segment, bias, sums, none,
                                    ToOutput<Vector, kVectors>(part, output));
}

void finish(const PanelPart& part, const float* segment, const float* bias, int width, float* sums,
            const ConvOutput& output) {
  switch (width) {
    case 8:
      return finish_part<Avx2, 1, 8>(part, segment, bias, sums, output);
    case 16:
      return finish_part<Avx512, 1, 8>(part, segment, bias, sums, output);
    case 32:
      return finish_part<Avx512, 2, 8>(part, segment, bias, sums, output);
    default:
      return finish_part<Avx512, 4, 4>(part, segment, bias, sums, output);
  }
}

}  // namespace

constexpr ConvOps kConvPanel64Avx512f = {64, 8, 16, fill, sum, finish};

}  // namespace fanin
