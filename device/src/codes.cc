#include "codes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace hexgraft {
namespace {

template <class Stored>
void store(const float* from, std::size_t count, const Code& code, void* to) {
  auto* out = static_cast<Stored*>(to);
  constexpr float kLow = std::numeric_limits<Stored>::min(), kHigh = std::numeric_limits<Stored>::max();
  const auto zero = static_cast<float>(code.zero);
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = static_cast<Stored>(std::clamp(std::nearbyint(from[i] / code.scale) + zero, kLow, kHigh));
  }
}

template <class Stored>
void restore(const void* from, std::size_t count, const Code& code, float* to) {
  const auto* in = static_cast<const Stored*>(from);
  for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<float>(std::int32_t{in[i]} - code.zero) * code.scale;
}

template <class Stored>
void fill(void* to, std::size_t count, std::int32_t value) {
  auto* out = static_cast<Stored*>(to);
  std::fill(out, out + count, static_cast<Stored>(value));
}

}  // namespace

void to_stored(const float* from, std::size_t count, const Code& code, void* to) {
  switch (code.type) {
    case Type::kFloat: std::memcpy(to, from, count * sizeof(float)); break;
    case Type::kUint8: store<std::uint8_t>(from, count, code, to); break;
    case Type::kInt8: store<std::int8_t>(from, count, code, to); break;
    case Type::kUint16: store<std::uint16_t>(from, count, code, to); break;
    case Type::kInt16: store<std::int16_t>(from, count, code, to); break;
  }
}

void to_real(const void* from, std::size_t count, const Code& code, float* to) {
  switch (code.type) {
    case Type::kFloat: std::memcpy(to, from, count * sizeof(float)); break;
    case Type::kUint8: restore<std::uint8_t>(from, count, code, to); break;
    case Type::kInt8: restore<std::int8_t>(from, count, code, to); break;
    case Type::kUint16: restore<std::uint16_t>(from, count, code, to); break;
    case Type::kInt16: restore<std::int16_t>(from, count, code, to); break;
  }
}

void fill_zero(void* to, std::size_t count, const Code& code) {
  switch (code.type) {
    case Type::kFloat: fill<float>(to, count, 0); break;
    case Type::kUint8:
    case Type::kInt8: fill<std::uint8_t>(to, count, code.zero); break;
    case Type::kUint16:
    case Type::kInt16: fill<std::uint16_t>(to, count, code.zero); break;
  }
}

}  // namespace hexgraft
