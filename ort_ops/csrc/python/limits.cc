#include "python/limits.h"

#include <chrono>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/cpu_features.h"

namespace fanin {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Keeps a value in a register and hides it from the optimizer.
template <typename T>
inline void opaque(T& value) {
#if defined(__x86_64__)
  asm volatile("" : "+x"(value));
#elif defined(__aarch64__)
  asm volatile("" : "+w"(value));
#else
  asm volatile("" : "+m"(value));
#endif
}

// The shortest of a few tries, since interruptions make a try longer.
template <typename Work>
double best_seconds(Work work) {
  double best = 1e9;
  for (int attempt = 0; attempt < 7; ++attempt) {
    const Clock::time_point start = Clock::now();
    work();
    const double seconds = seconds_since(start);
    if (seconds < best) best = seconds;
  }
  return best;
}

// 12 independent sums hide the latency of 4 cycles at up to 3 multiply-adds per cycle. Uses GCC's
// vector extension, so that one body serves every width; the caller's target attribute decides.
constexpr int kSums = 12;
constexpr int kSteps = 50000;

template <typename Vector>
__attribute__((always_inline)) inline void multiply_add_loop() {
  Vector sums[kSums] = {};
  Vector factor = {};
  opaque(factor);
  for (int step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      sums[i] = sums[i] * factor + factor;
      opaque(sums[i]);
    }
  }
}

template <typename Vector>
__attribute__((always_inline)) inline uint64_t read_loop(const char* data, size_t bytes) {
  constexpr size_t kStep = 8 * sizeof(Vector);
  Vector ors[8] = {};
  size_t at = 0;
  for (; at + kStep <= bytes; at += kStep) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      Vector read;
      std::memcpy(&read, data + at + i * sizeof(Vector), sizeof(Vector));
      ors[i] |= read;
    }
  }
  for (int i = 1; i < 8; ++i) ors[0] |= ors[i];
  uint64_t result = 0;
  for (size_t i = 0; i < sizeof(Vector) / sizeof(uint64_t); ++i) result |= ors[0][i];
  for (; at < bytes; ++at) result |= static_cast<unsigned char>(data[at]);
  return result;
}

typedef float Float128 __attribute__((vector_size(16)));
typedef uint64_t Int128 __attribute__((vector_size(16)));
typedef float Float256 __attribute__((vector_size(32)));
typedef uint64_t Int256 __attribute__((vector_size(32)));
typedef float Float512 __attribute__((vector_size(64)));
typedef uint64_t Int512 __attribute__((vector_size(64)));

void multiply_add_128() { multiply_add_loop<Float128>(); }
uint64_t read_128(const char* data, size_t bytes) { return read_loop<Int128>(data, bytes); }

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void multiply_add_256() { multiply_add_loop<Float256>(); }
__attribute__((target("avx2"))) uint64_t read_256(const char* data, size_t bytes) {
  return read_loop<Int256>(data, bytes);
}
__attribute__((target("avx512f"))) void multiply_add_512() { multiply_add_loop<Float512>(); }
__attribute__((target("avx512f"))) uint64_t read_512(const char* data, size_t bytes) {
  return read_loop<Int512>(data, bytes);
}
#endif

}  // namespace

double clock_hertz() {
  constexpr int kLoops = 20000;
  uint64_t sum = 0, one = 1;
  const double seconds = best_seconds([&] {
    for (int loop = 0; loop < kLoops; ++loop) {
#pragma GCC unroll 32
      for (int i = 0; i < 32; ++i) {
#if defined(__x86_64__)
        asm volatile("add %1, %0" : "+r"(sum) : "r"(one));
#elif defined(__aarch64__)
        asm volatile("add %0, %0, %1" : "+r"(sum) : "r"(one));
#else
#error "no chain of additions for this architecture"
#endif
      }
    }
  });
  return kLoops * 32 / seconds;
}

double peak_macs_per_second() {
  void (*loop)() = multiply_add_128;
  double lanes = 4;
#if defined(__x86_64__)
  if (is_supported(Isa::kAvx512f)) {
    loop = multiply_add_512;
    lanes = 16;
  } else if (is_supported(Isa::kAvx2)) {
    loop = multiply_add_256;
    lanes = 8;
  }
#endif
  return lanes * kSums * kSteps / best_seconds(loop);
}

uint64_t read_once(const void* data, size_t bytes) {
  const char* bytes_at = static_cast<const char*>(data);
#if defined(__x86_64__)
  static const bool wide = is_supported(Isa::kAvx512f), middle = is_supported(Isa::kAvx2);
  if (wide) return read_512(bytes_at, bytes);
  if (middle) return read_256(bytes_at, bytes);
#endif
  return read_128(bytes_at, bytes);
}

}  // namespace fanin
