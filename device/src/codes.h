// Real numbers as a graph stores them: float32, or integers of which real = (stored - zero) * scale.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hexgraft {

enum class Type { kFloat, kUint8, kInt8, kUint16, kInt16 };

constexpr std::size_t bytes_of(Type type) {
  return type == Type::kFloat ? 4 : type == Type::kUint8 || type == Type::kInt8 ? 1 : 2;
}

struct Code {
  Type type = Type::kFloat;
  float scale = 1;
  std::int32_t zero = 0;
};

// Stored numbers of `count` real ones: to the nearest integer, ties to even, clipped to the type's range.
void to_stored(const float* from, std::size_t count, const Code& code, void* to);
// Real numbers of `count` stored ones.
void to_real(const void* from, std::size_t count, const Code& code, float* to);
// `count` stored numbers that are 0 in reality.
void fill_zero(void* to, std::size_t count, const Code& code);

}  // namespace hexgraft
