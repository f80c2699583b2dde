// AVX2 has no permute of two registers, but its byte shuffle looks up 32 values in a table of 16
// and writes zero where the index has its high bit set. x is split into four byte planes; two
// tables per plane give a window of 32 columns, and unpacking the planes gives exact float32.
#include <immintrin.h>

#include "kernels/window_tables.h"

namespace fanin {
namespace {

constexpr int kRows = 32;
constexpr int kColumns = 16;
constexpr int kBlockBytes = 64;  // four planes of 16 bytes

// Reads zero from both tables, see `sum_samples`.
constexpr uint8_t kPadding = 0xc0;

// Unpacking takes bytes 4v..4v+3 of both 128-bit lanes to vector v.
constexpr WindowGeometry geometry() {
  WindowGeometry geometry{kRows,    kColumns, kColumns, kColumns, 2, kBlockBytes,
                          kPadding, {},       {},       {},       {}};
  for (int r = 0; r < kRows; ++r)
    geometry.lane_byte[r] = static_cast<uint8_t>(r % 8 / 4 * 16 + r / 8 * 4 + r % 4);
  return geometry;
}

struct Float32Weights {
  static constexpr ValueType kType = ValueType::kFloat32;
  static constexpr int kBytes = 4;
  static constexpr int lane(int row) { return row; }
  static __m256 load(const uint8_t* weights, int v) {
    return _mm256_load_ps(reinterpret_cast<const float*>(weights) + 8 * v);
  }
};

struct Float16Weights {
  static constexpr ValueType kType = ValueType::kFloat16;
  static constexpr int kBytes = 2;
  static constexpr int lane(int row) { return row; }
  static __m256 load(const uint8_t* weights, int v) {
    return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(weights + 16 * v)));
  }
};

// Rows 16 h + i and 16 h + 8 + i are the halves of dword i of half a line: a shift and a mask widen
// them without the shuffles' port.
struct Bfloat16Weights {
  static constexpr ValueType kType = ValueType::kBfloat16;
  static constexpr int kBytes = 2;
  static constexpr int lane(int row) { return row / 16 * 16 + row % 8 * 2 + row % 16 / 8; }
  static __m256 load(const uint8_t* weights, int v) {
    const __m256i both =
        _mm256_load_si256(reinterpret_cast<const __m256i*>(weights + 32 * (v / 2)));
    return _mm256_castsi256_ps(v % 2 == 0 ? _mm256_slli_epi32(both, 16)
                                          : _mm256_and_si256(both, _mm256_set1_epi32(-65536)));
  }
};

void split_block(const float* x, uint8_t* planes) {
  // Sorts the 16 bytes of four floats by their position in the float: [b0 x4][b1 x4][b2 x4][b3 x4].
  const __m128i by_place = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  __m128i four[4];
  for (int i = 0; i < 4; ++i)
    four[i] =
        _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + 4 * i)), by_place);
  const __m128i low01 = _mm_unpacklo_epi32(four[0], four[1]);
  const __m128i low23 = _mm_unpacklo_epi32(four[2], four[3]);
  const __m128i high01 = _mm_unpackhi_epi32(four[0], four[1]);
  const __m128i high23 = _mm_unpackhi_epi32(four[2], four[3]);
  __m128i* to = reinterpret_cast<__m128i*>(planes);
  _mm_store_si128(to, _mm_unpacklo_epi64(low01, low23));
  _mm_store_si128(to + 1, _mm_unpackhi_epi64(low01, low23));
  _mm_store_si128(to + 2, _mm_unpacklo_epi64(high01, high23));
  _mm_store_si128(to + 3, _mm_unpackhi_epi64(high01, high23));
}

void split(const float* x, int64_t in_features, int64_t blocks, uint8_t* planes) {
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t left = in_features - b * kColumns;
    const float* from = left > 0 ? x + b * kColumns : x;
    float tail[kColumns] = {};
    if (left < kColumns) {
      for (int64_t c = 0; c < left; ++c) tail[c] = from[c];
      from = tail;
    }
    split_block(from, planes + b * kBlockBytes);
  }
}

// The values at `first` in the first block of the window or at `second` in its second.
__m256i look_up(const uint8_t* plane, __m256i first, __m256i second) {
  const __m128i* table = reinterpret_cast<const __m128i*>(plane);
  const __m256i table0 = _mm256_broadcastsi128_si256(_mm_load_si128(table));
  const __m256i table1 = _mm256_broadcastsi128_si256(_mm_load_si128(table + kBlockBytes / 16));
  return _mm256_or_si256(_mm256_shuffle_epi8(table0, first), _mm256_shuffle_epi8(table1, second));
}

template <typename Weights, int kSamples>
void sum_samples(const WindowSteps& steps, const uint8_t* planes, size_t stride, float* sums) {
  __m256 sum[kSamples][4];
  for (int s = 0; s < kSamples; ++s)
    for (int v = 0; v < 4; ++v) sum[s][v] = _mm256_setzero_ps();
  const uint8_t* step = steps.data;
  const uint8_t* window = planes;
  for (size_t i = 0; i < steps.count; ++i, step += kRows * (1 + Weights::kBytes)) {
    window += static_cast<size_t>(steps.advances[i]) * kBlockBytes;
    const __m256i slots = _mm256_load_si256(reinterpret_cast<const __m256i*>(step));
    // Slots 16 to 31 and padding get their high bit set, 0 to 15 keep their low bits.
    const __m256i first = _mm256_adds_epu8(slots, _mm256_set1_epi8(0x70));
    // Slots 0 to 15 and padding get their high bit set, 16 to 31 become 0 to 15.
    const __m256i second = _mm256_sub_epi8(slots, _mm256_set1_epi8(0x10));
    const uint8_t* weights = step + kRows;
#pragma GCC unroll 2
    for (int s = 0; s < kSamples; ++s) {
      const uint8_t* block = window + s * stride;
      const __m256i b0 = look_up(block, first, second);
      const __m256i b1 = look_up(block + 16, first, second);
      const __m256i b2 = look_up(block + 32, first, second);
      const __m256i b3 = look_up(block + 48, first, second);
      const __m256i low01 = _mm256_unpacklo_epi8(b0, b1), low23 = _mm256_unpacklo_epi8(b2, b3);
      const __m256i high01 = _mm256_unpackhi_epi8(b0, b1), high23 = _mm256_unpackhi_epi8(b2, b3);
      const __m256i x[4] = {
          _mm256_unpacklo_epi16(low01, low23), _mm256_unpackhi_epi16(low01, low23),
          _mm256_unpacklo_epi16(high01, high23), _mm256_unpackhi_epi16(high01, high23)};
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v)
        sum[s][v] =
            _mm256_fmadd_ps(_mm256_castsi256_ps(x[v]), Weights::load(weights, v), sum[s][v]);
    }
  }
  for (int s = 0; s < kSamples; ++s)
    for (int v = 0; v < 4; ++v) _mm256_store_ps(sums + s * kRows + 8 * v, sum[s][v]);
}

template <typename Weights>
void sum(const WindowSteps& steps, const uint8_t* planes, size_t stride, int samples, float* sums) {
  if (samples == 1) return sum_samples<Weights, 1>(steps, planes, stride, sums);
  sum_samples<Weights, 2>(steps, planes, stride, sums);
}

template <typename Weights>
constexpr WindowOps ops() {
  return {with_weights<Weights>(geometry()), split, sum<Weights>, 2};
}

}  // namespace

constexpr WindowOps kWindow32Avx2[kFloatTypes] = {ops<Float32Weights>(), ops<Float16Weights>(),
                                                  ops<Bfloat16Weights>()};

}  // namespace fanin
