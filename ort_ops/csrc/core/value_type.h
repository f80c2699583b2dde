// The types in which weights and activations are stored. Sums of the floats are float32; int8 is
// the type of quantized weights (quantized_gemm.h), whose sums are int32. Included by
// translation units with wider instruction sets, so it defines no function.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fanin {

enum class ValueType : uint8_t { kFloat32, kFloat16, kBfloat16, kInt8 };

// The floats, which come first.
inline constexpr size_t kFloatTypes = 3;

// The types of activations next to quantized weights.
enum class QuantizedType : uint8_t { kUint8, kInt8, kFloat32 };

// "float16"
const char* value_type_name(ValueType type);

size_t value_bytes(ValueType type);

// Exact: every 16-bit value is a float32. A signaling NaN becomes quiet, as in hardware.
float widen_float16(uint16_t bits);
float widen_bfloat16(uint16_t bits);

// The element at `index` of an array of that type.
float load_value(const void* values, ValueType type, int64_t index);

// To nearest even, of NaN a quiet one: the nearest bfloat16, as a float32.
float round_bfloat16(float value);
void round_bfloat16(const float* from, int64_t count, float* to);

// Converts whole arrays, with the best instructions of this CPU; results are the same on any CPU.
// Narrowing rounds to nearest even, and beyond the largest float16 to infinity.
void widen_float16(const uint16_t* from, int64_t count, float* to);
void narrow_float16(const float* from, int64_t count, uint16_t* to);

}  // namespace fanin
