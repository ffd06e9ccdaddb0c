// One layer's keys, or its values: what a cache does to slots, whatever the order their numbers lie in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "codes.h"
#include "memory.h"

namespace hexgraft {

// Numbers lie as [lines][slots][unit]: so many lines, in each of which a slot has `unit` numbers side by side.
struct Order {
  std::size_t lines = 0, unit = 0;
};

// [heads][slots][dim]
constexpr Order by_slot(std::size_t heads, std::size_t dim) { return {heads, dim}; }
// [heads][dim][slots]
constexpr Order by_dimension(std::size_t heads, std::size_t dim) { return {heads * dim, 1}; }

// A fixed number of slots, zero at first.
class Slots {
 public:
  Slots(std::shared_ptr<Memory> memory, Order order, const Code& code, std::size_t count);

  void* data() { return numbers_.data(); }
  const void* data() const { return numbers_.data(); }
  // Copy the slots `source` of numbers in the same order and code, `count` slots of them, to the slots `target`.
  // The numbers may be these themselves where no copy reads what one before it wrote.
  void put(const void* from, std::size_t count, const std::vector<std::int32_t>& source,
           const std::vector<std::int32_t>& target);
  void put_own(const std::vector<std::int32_t>& source, const std::vector<std::int32_t>& target) {
    put(data(), count_, source, target);
  }
  // Copy `n` slots of others in the same order and code, from `first` on, to those from `to` on.
  void copy(const Slots& from, std::size_t first, std::size_t to, std::size_t n);
  void clear(std::size_t first, std::size_t n);
  // `n` slots from `first` on as real numbers, [lines][n][unit].
  void read(std::size_t first, std::size_t n, float* to) const;
  void write(std::size_t first, std::size_t n, const float* from);

 private:
  // Where a slot's numbers in a line begin, in bytes.
  std::size_t offset(std::size_t line, std::size_t slot) const { return (line * count_ + slot) * cell(); }
  std::size_t cell() const { return order_.unit * bytes_of(code_.type); }

  Order order_;
  Code code_;
  std::size_t count_;
  Buffer numbers_;
};

}  // namespace hexgraft
