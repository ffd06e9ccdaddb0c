#include "pass.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace hexgraft {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

bool bit(const std::vector<std::uint8_t>& bits, std::size_t row_bytes, int row, int column) {
  return (bits[at(row) * row_bytes + at(column) / 8] >> (at(column) % 8) & 1) != 0;
}

// Angles in double, rounded once, so that far positions keep their phase.
void fill_rope(const Rope& rope, int row, std::int32_t position, Buffer& cos, Buffer& sin) {
  const std::size_t half = rope.frequencies.size();
  float* c = cos.floats() + at(row) * half;
  float* s = sin.floats() + at(row) * half;
  for (std::size_t i = 0; i < half; ++i) {
    const double angle = position * rope.frequencies[i];
    c[i] = static_cast<float>(std::cos(angle) * rope.scale);
    s[i] = static_cast<float>(std::sin(angle) * rope.scale);
  }
}

}  // namespace

bool Visibility::looks_ahead(int count) const {
  const std::size_t row_bytes = (at(count) + 7) / 8;
  for (int row = 0; !rows.empty() && row < count; ++row) {
    for (int other = row + 1; other < count; ++other) {
      if (bit(rows, row_bytes, row, other)) return true;
    }
  }
  return false;
}

Pass::Pass(const Sizes& sizes, std::shared_ptr<Memory> memory) : sizes_(sizes), memory_(std::move(memory)) {}

void Pass::resize(int width, int capacity) {
  if (width <= width_ && capacity <= capacity_) return;
  const std::size_t w = at(std::max(width, width_)), c = at(std::max(capacity, capacity_));
  ++epoch_;
  mask = Buffer(memory_, w * (c + w));
  mask_local = Buffer(memory_, sizes_.window > 0 ? w * (c + w) : 0);
  const bool stored = !sizes_.borders.empty();
  stored_mask_ = Buffer(memory_, stored ? w * (c + w) : 0);
  if (width > width_) {
    const std::size_t half = at(sizes_.head_dim) / 2, row = at(sizes_.kv_heads) * at(sizes_.head_dim);
    ids = Buffer(memory_, w);
    cos = Buffer(memory_, w * half);
    sin = Buffer(memory_, w * half);
    cos_local = Buffer(memory_, w * sizes_.local_rope.frequencies.size());
    sin_local = Buffer(memory_, w * sizes_.local_rope.frequencies.size());
    logits = Buffer(memory_, w * at(sizes_.logits));
    hidden = Buffer(memory_, w * at(sizes_.features));
    features_in = Buffer(memory_, w * at(sizes_.features_in));
    hidden_in = Buffer(memory_, sizes_.is_head ? w * at(sizes_.hidden) : 0);
    stored_cos_ = Buffer(memory_, stored ? w * half : 0);
    stored_sin_ = Buffer(memory_, stored ? w * half : 0);
    stored_logits_ = Buffer(memory_, stored ? w * at(sizes_.logits) : 0);
    const Type type = sizes_.kv_codes.empty() ? Type::kFloat : sizes_.kv_codes.front().key.type;
    std::vector<Buffer> new_keys, new_values;
    for (int i = 0; i < (sizes_.joined ? 0 : sizes_.layers); ++i) {
      new_keys.emplace_back(memory_, (row * w * bytes_of(type) + 3) / 4);
      new_values.emplace_back(memory_, (row * w * bytes_of(type) + 3) / 4);
    }
    keys = std::move(new_keys);
    values = std::move(new_values);
  }
  width_ = static_cast<int>(w);
  capacity_ = static_cast<int>(c);
}

void Pass::fill(int width, int capacity, const std::vector<std::int32_t>& tokens,
                const std::vector<std::int32_t>& rows, const std::vector<std::int32_t>& slots,
                const Visibility& visible) {
  const int count = static_cast<int>(tokens.size()), first = sizes_.first_row(width, count);
  auto* id = static_cast<std::int32_t*>(ids.data());
  for (int row = 0; row < width; ++row) {
    id[row] = row >= first && row < first + count ? tokens[at(row - first)] : 0;
    fill_rope(sizes_.rope, row, rows[at(row)], cos, sin);
    fill_rope(sizes_.local_rope, row, rows[at(row)], cos_local, sin_local);
  }
  fill_mask(width, capacity, count, visible);
  if (sizes_.window > 0) fill_local_mask(width, capacity, rows, slots);
  if (sizes_.borders.empty()) return;
  const Border border = sizes_.border(width);
  const std::size_t half = sizes_.rope.frequencies.size();
  if (border.mask.type != Type::kFloat) {
    to_stored(mask.floats(), at(width) * at(capacity + width), border.mask, stored_mask_.data());
  }
  if (border.cos.type != Type::kFloat) to_stored(cos.floats(), at(width) * half, border.cos, stored_cos_.data());
  if (border.sin.type != Type::kFloat) to_stored(sin.floats(), at(width) * half, border.sin, stored_sin_.data());
}

const float* Pass::logits_row(int width, int row) const {
  const Border border = sizes_.border(width);
  const std::size_t count = at(sizes_.logits), start = border.last_logits ? 0 : at(row) * count;
  if (border.logits.type == Type::kFloat) return logits.floats() + start;
  real_row_.resize(count);
  const auto* stored = static_cast<const unsigned char*>(stored_logits_.data());
  to_real(stored + start * bytes_of(border.logits.type), count, border.logits, real_row_.data());
  return real_row_.data();
}

void Pass::fill_states(int width, const States& states) {
  if (!sizes_.is_head) return;
  const auto write = [width](const std::vector<float>& rows, int size, Buffer& into) {
    std::fill(into.floats(), into.floats() + at(width) * at(size), 0.0F);
    std::copy(rows.begin(), rows.end(), into.floats());
  };
  write(states.features, sizes_.features_in, features_in);
  write(states.hidden, sizes_.hidden, hidden_in);
}

// A row sees in layers with a window what it sees elsewhere and is near enough.
void Pass::fill_local_mask(int width, int capacity, const std::vector<std::int32_t>& rows,
                           const std::vector<std::int32_t>& slots) {
  const float* from = mask.floats();
  float* to = mask_local.floats();
  for (int row = 0; row < width; ++row) {
    const std::int32_t first = rows[at(row)] - sizes_.window + 1;
    for (int slot = 0; slot < capacity; ++slot) *to++ = slots[at(slot)] < first ? sizes_.mask_value : from[slot];
    from += capacity;
    for (int other = 0; other < width; ++other) *to++ = rows[at(other)] < first ? sizes_.mask_value : from[other];
    from += width;
  }
}

void Pass::fill_mask(int width, int capacity, int count, const Visibility& visible) {
  const std::size_t columns = at(capacity) + at(width);
  const std::size_t row_bytes = (at(count) + 7) / 8, seen_bytes = (visible.slots.size() + 7) / 8;
  const int first = sizes_.first_row(width, count);
  std::fill(mask.floats(), mask.floats() + at(width) * columns, sizes_.mask_value);
  for (int place = 0; place < width; ++place) {
    const int row = place - first;
    float* line = mask.floats() + at(place) * columns;
    float* own = line + capacity + first;
    line[capacity + place] = 0;
    if (row < 0 || row >= count) continue;
    std::fill(line, line + visible.prefix, 0.0F);
    for (std::size_t i = 0; i < visible.slots.size(); ++i) {
      const bool sees = bit(visible.seen, seen_bytes, row, static_cast<int>(i));
      line[visible.slots[i]] = sees ? 0.0F : sizes_.mask_value;
    }
    if (visible.rows.empty()) {
      std::fill(own, own + row, 0.0F);
      continue;
    }
    for (int other = 0; other < count; ++other) {
      if (bit(visible.rows, row_bytes, row, other)) own[other] = 0;
    }
  }
}

}  // namespace hexgraft
