#include "core/value_type.h"

#include <cmath>
#include <cstring>

#include "core/cpu_features.h"
#include "kernels/convert_float16.h"

namespace fanin {
namespace {

float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// The unit of float16's subnormals: 2^-24.
constexpr float kSmallest = 0x1p-24f;

uint16_t narrow(float value) {
  const uint32_t bits = bits_of(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000)  // NaN: quiet, with the head of its payload
    return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // from 65520 on
  if (magnitude < 0x38800000)  // subnormal or zero: the hardware's own rounding to a whole number
    return static_cast<uint16_t>(
        sign | static_cast<uint16_t>(std::nearbyint(float_of(magnitude) / kSmallest)));
  const uint32_t even = magnitude >> 13 & 1;
  return static_cast<uint16_t>(sign | ((magnitude - (112u << 23) + 0xfff + even) >> 13));
}

#if defined(__x86_64__)
bool has_f16c() {
  static const bool has = supported_isas().size() > 1;  // AVX2 and all above it include F16C
  return has;
}
#endif

}  // namespace

const char* value_type_name(ValueType type) {
  switch (type) {
    case ValueType::kFloat16:
      return "float16";
    case ValueType::kBfloat16:
      return "bfloat16";
    case ValueType::kInt8:
      return "int8";
    default:
      return "float32";
  }
}

size_t value_bytes(ValueType type) {
  switch (type) {
    case ValueType::kInt8:
      return 1;
    case ValueType::kFloat16:
    case ValueType::kBfloat16:
      return 2;
    default:
      return 4;
  }
}

float widen_float16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t magnitude = bits & 0x7fff;
  if (magnitude < 0x400) {
    const float value = static_cast<float>(magnitude) * kSmallest;
    return sign ? -value : value;
  }
  if (magnitude < 0x7c00) return float_of(sign | ((magnitude << 13) + (112u << 23)));
  const uint32_t quiet = magnitude > 0x7c00 ? 0x400000 : 0;
  return float_of(sign | 0x7f800000 | quiet | (magnitude & 0x3ff) << 13);
}

float widen_bfloat16(uint16_t bits) { return float_of(static_cast<uint32_t>(bits) << 16); }

float round_bfloat16(float value) {
  const uint32_t bits = bits_of(value);
  // Without a branch, so that loops become vector code.
  const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
  const uint32_t quiet = bits | 0x400000;
  return float_of(((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded) & 0xffff0000);
}

void round_bfloat16(const float* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = round_bfloat16(from[i]);
}

float load_value(const void* values, ValueType type, int64_t index) {
  switch (type) {
    case ValueType::kFloat16:
      return widen_float16(static_cast<const uint16_t*>(values)[index]);
    case ValueType::kBfloat16:
      return widen_bfloat16(static_cast<const uint16_t*>(values)[index]);
    case ValueType::kInt8:
      return static_cast<const int8_t*>(values)[index];
    default:
      return static_cast<const float*>(values)[index];
  }
}

void widen_float16(const uint16_t* from, int64_t count, float* to) {
  int64_t i = 0;
#if defined(__x86_64__)
  if (has_f16c()) i = widen_float16_f16c(from, count, to);
#elif defined(__aarch64__)
  i = widen_float16_neon(from, count, to);
#endif
  for (; i < count; ++i) to[i] = widen_float16(from[i]);
}

void narrow_float16(const float* from, int64_t count, uint16_t* to) {
  int64_t i = 0;
#if defined(__x86_64__)
  if (has_f16c()) i = narrow_float16_f16c(from, count, to);
#elif defined(__aarch64__)
  i = narrow_float16_neon(from, count, to);
#endif
  for (; i < count; ++i) to[i] = narrow(from[i]);
}

}  // namespace fanin
