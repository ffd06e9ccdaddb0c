// Bulk numbers of a message: bytes as they lie in memory, little end first.
#pragma once

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

namespace hexgraft {

// How every machine this runs on holds numbers.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "bulk data is sent as it lies in memory");

template <class T>
nlohmann::json binary(const T* data, std::size_t count) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(data);
  return nlohmann::json::binary(std::vector<std::uint8_t>(bytes, bytes + count * sizeof(T)));
}

inline std::vector<float> floats(const std::vector<std::uint8_t>& bytes) {
  std::vector<float> numbers(bytes.size() / sizeof(float));
  if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(float));
  return numbers;
}

}  // namespace hexgraft
