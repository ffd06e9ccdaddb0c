#include "slots.h"

#include <cstring>
#include <utility>

namespace hexgraft {
namespace {

using Bytes = unsigned char;
using Indices = std::vector<std::int32_t>;

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

// In each of `lines` lines of `to_count` and `from_count` cells: to[target[i]] = from[source[i]].
template <class Cell>
void copy_cells(void* to, std::size_t to_count, const void* from, std::size_t from_count, std::size_t lines,
                const Indices& source, const Indices& target) {
  auto* out = static_cast<Cell*>(to);
  const auto* in = static_cast<const Cell*>(from);
  for (std::size_t line = 0; line < lines; ++line, in += from_count, out += to_count) {
    for (std::size_t i = 0; i < source.size(); ++i) out[at(target[i])] = in[at(source[i])];
  }
}

// The same for cells of any size.
void copy_cells(std::size_t cell, void* to, std::size_t to_count, const void* from, std::size_t from_count,
                std::size_t lines, const Indices& source, const Indices& target) {
  auto* out = static_cast<Bytes*>(to);
  const auto* in = static_cast<const Bytes*>(from);
  for (std::size_t line = 0; line < lines; ++line, in += from_count * cell, out += to_count * cell) {
    for (std::size_t i = 0; i < source.size(); ++i) {
      Bytes* into = out + at(target[i]) * cell;
      const Bytes* taken = in + at(source[i]) * cell;
      if (into != taken) std::memcpy(into, taken, cell);
    }
  }
}

}  // namespace

Slots::Slots(std::shared_ptr<Memory> memory, Order order, const Code& code, std::size_t count)
    : order_(order),
      code_(code),
      count_(count),
      numbers_(std::move(memory), (order.lines * count * cell() + 3) / 4) {
  fill_zero(data(), order.lines * count * order.unit, code);
}

void Slots::put(const void* from, std::size_t count, const Indices& source, const Indices& target) {
  const std::size_t lines = order_.lines;
  switch (cell()) {
    case 1: return copy_cells<std::uint8_t>(data(), count_, from, count, lines, source, target);
    case 2: return copy_cells<std::uint16_t>(data(), count_, from, count, lines, source, target);
    case 4: return copy_cells<std::uint32_t>(data(), count_, from, count, lines, source, target);
    default: return copy_cells(cell(), data(), count_, from, count, lines, source, target);
  }
}

void Slots::copy(const Slots& from, std::size_t first, std::size_t to, std::size_t n) {
  auto* out = static_cast<Bytes*>(data());
  const auto* in = static_cast<const Bytes*>(from.data());
  for (std::size_t line = 0; line < order_.lines; ++line) {
    std::memcpy(out + offset(line, to), in + from.offset(line, first), n * cell());
  }
}

void Slots::clear(std::size_t first, std::size_t n) {
  auto* out = static_cast<Bytes*>(data());
  for (std::size_t line = 0; line < order_.lines; ++line) {
    fill_zero(out + offset(line, first), n * order_.unit, code_);
  }
}

void Slots::read(std::size_t first, std::size_t n, float* to) const {
  const std::size_t numbers = n * order_.unit;
  const auto* in = static_cast<const Bytes*>(data());
  for (std::size_t line = 0; line < order_.lines; ++line) {
    to_real(in + offset(line, first), numbers, code_, to + line * numbers);
  }
}

void Slots::write(std::size_t first, std::size_t n, const float* from) {
  const std::size_t numbers = n * order_.unit;
  auto* out = static_cast<Bytes*>(data());
  for (std::size_t line = 0; line < order_.lines; ++line) {
    to_stored(from + line * numbers, numbers, code_, out + offset(line, first));
  }
}

}  // namespace hexgraft
