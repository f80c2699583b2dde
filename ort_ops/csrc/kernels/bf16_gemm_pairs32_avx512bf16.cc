// Dot products of pairs of bfloat16. A column of the panel is a vector of samples; the columns of
// two weights are interleaved when they meet, so that any two weights of a row make a pair, and an
// instruction does two multiply-adds in each lane. A missing weight is 0 and meets the column of
// zeros, so that no infinity or NaN in x reaches a row without a weight there.
//
// Tiles of 64 samples are slower (Zen 4: 8-25 % more time): in the same L1, segments are half as
// long, so that sums are loaded and stored twice as often.
#include <immintrin.h>

#include "kernels/panel_ahead.h"
#include "kernels/panel_avx2_vector.h"
#include "kernels/panel_avx512_vector.h"
#include "kernels/panel_tables.h"
#include "kernels/panel_transpose16.h"

namespace fanin {
namespace {

// A column is one vector of bfloat16. Its samples are in the order in which unpacking gives the
// sums in theirs: of each eight, four of the first half of the samples and four of the second.
struct Pairs512 : Avx512 {
  static __m512i load_column(const char* from) { return _mm512_load_si512(from); }
  static __m512i unpack_low(__m512i a, __m512i b) { return _mm512_unpacklo_epi16(a, b); }
  static __m512i unpack_high(__m512i a, __m512i b) { return _mm512_unpackhi_epi16(a, b); }
};

struct Pairs256 : Avx2 {
  static __m256i load_column(const char* from) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
  }
  static __m256i unpack_low(__m256i a, __m256i b) { return _mm256_unpacklo_epi16(a, b); }
  static __m256i unpack_high(__m256i a, __m256i b) { return _mm256_unpackhi_epi16(a, b); }
};

// With the intrinsic, GCC 12 keeps copies of the sums and spills them.
template <typename Sums, typename Columns>
inline __attribute__((always_inline)) void add_dots(Sums& sums, Columns x, Sums weights) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(x), "v"(weights));
}

// As sum_rows in panel_core.h, of a whole group.
template <typename Vector>
inline __attribute__((always_inline)) void sum_group(const char* weights, const char* offsets,
                                                     ptrdiff_t size, const uint16_t* rows,
                                                     const char* panel, const float* bias,
                                                     float* sums) {
  constexpr int kLanes = Vector::kLanes, kWidth = 2 * kLanes;
  constexpr size_t kScale = kWidth / 8;                            // see kPairOffsetsPerColumn
  constexpr ptrdiff_t kStep = kPanelGroupRows * sizeof(uint32_t);  // of weights and of offsets
  typename Vector::Type sum[kPanelGroupRows][2];
#pragma GCC unroll 8
  for (int r = 0; r < kPanelGroupRows; ++r) {
    const float* place = sums + size_t{rows[r]} * kWidth;
    sum[r][0] = bias ? Vector::broadcast(bias + rows[r]) : Vector::load(place);
    sum[r][1] = bias ? sum[r][0] : Vector::load(place + kLanes);
  }
  for (ptrdiff_t at = -size; at != 0; at += kStep) {
#pragma GCC unroll 8
    for (int r = 0; r < kPanelGroupRows; ++r) {
      typename Vector::Type weight =
          Vector::broadcast(reinterpret_cast<const float*>(weights + at) + r);
      // Keeps GCC from broadcasting it anew for each product.
      asm("" : "+v"(weight));
      uint32_t two;
      __builtin_memcpy(&two, offsets + at + r * sizeof two, sizeof two);
      asm("" : "+r"(two));
      const auto a = Vector::load_column(panel + static_cast<uint16_t>(two) * kScale);
      const auto b = Vector::load_column(panel + (two >> 16) * kScale);
      add_dots(sum[r][0], Vector::unpack_low(a, b), weight);
      add_dots(sum[r][1], Vector::unpack_high(a, b), weight);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kPanelGroupRows; ++r) {
    float* place = sums + size_t{rows[r]} * kWidth;
    Vector::store(place, sum[r][0]);
    Vector::store(place + kLanes, sum[r][1]);
  }
}

// As sum_part in panel_core.h.
template <typename Vector>
void sum_part(const PanelPart& part, const float* segment, const float* bias, float* sums,
              PanelAhead& ahead) {
  const char* panel = reinterpret_cast<const char*>(segment);
  const char* weights = reinterpret_cast<const char*>(part.weights);
  const char* offsets = reinterpret_cast<const char*>(part.offsets);
  const uint16_t* rows = part.rows;
  for (size_t run = 0; run < part.run_count; ++run) {
    const ptrdiff_t size = part.runs[run].steps * kPanelGroupRows * ptrdiff_t{sizeof(uint32_t)};
    for (uint32_t group = 0; group < part.runs[run].groups; ++group, rows += kPanelGroupRows) {
      offsets += size;
      weights += size;
      fetch_ahead(ahead);
      sum_group<Vector>(weights, offsets, size, rows, panel, bias, sums);
    }
  }
}

void sum(const PanelPart& part, const float* segment, const float* bias, int width, float* sums,
         PanelAhead& ahead) {
  if (width == 16) return sum_part<Pairs256>(part, segment, bias, sums, ahead);
  sum_part<Pairs512>(part, segment, bias, sums, ahead);
}

// Sixteen samples of a column, as bfloat16.
struct PutHalves {
  char* segment;
  int width;

  void operator()(int64_t column, int place, __m512 samples) const {
    _mm256_store_si256(reinterpret_cast<__m256i*>(segment + ((1 + column) * width + place) * 2),
                       reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(samples)));
  }
};

// The samples of the places first, first + 1 ... of a column, see Pairs512. Past the last one it
// repeats that one.
RowPointers<16> in_places(const float* x, int64_t in_features, int samples, int width, int first) {
  RowPointers<16> rows(x, 4 * in_features, samples);
  for (int i = 0; i < 16; ++i) {
    const int place = first + i;
    const int sample = place / 8 * 4 + place % 4 + (place % 8 < 4 ? 0 : width / 2);
    const int64_t row = sample < samples ? sample : samples - 1;
    rows.row[i] = reinterpret_cast<const char*>(x + row * in_features);
  }
  return rows;
}

void fill_halves(const float* x, int64_t in_features, int samples, int64_t columns, int width,
                 float* segment) {
  fill_zeros8(segment, width / 2);
  const PutHalves put{reinterpret_cast<char*>(segment), width};
  for (int place = 0; place < width; place += 16) {
    const RowPointers<16> rows = in_places(x, in_features, samples, width, place);
    for (int64_t c = 0; c < columns; c += 16) {
      __m512 column[16];
      if (columns >= 16) {
        if (c > columns - 16) c = columns - 16;  // once more, rather than less than a block
        transpose16(rows, c, column);
      } else {
        alignas(64) float few[16][16] = {};
        for (int i = 0; i < 16; ++i)
          __builtin_memcpy(few[i], rows.row[i], static_cast<size_t>(4 * columns));
        transpose16(RowPointers<16>(few, 64, 16), 0, column);
      }
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i)
        if (c + i < columns) put(c + i, place, column[i]);
    }
  }
}

}  // namespace

constexpr PanelOps kPairs32Avx512bf16 = {PanelEntry::kPair, 32,  16,     0.000016,
                                         fill_halves,       sum, drain16};

}  // namespace fanin
