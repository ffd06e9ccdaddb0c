#include "cache.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace hexgraft {
namespace {

constexpr std::size_t kFloat = sizeof(float);

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

// Copy `rows` rows of `count` floats between arrays of different row lengths.
void copy_rows(float* to, std::size_t to_stride, const float* from, std::size_t from_stride, std::size_t rows,
               std::size_t count) {
  for (std::size_t i = 0; i < rows; ++i) std::memcpy(to + i * to_stride, from + i * from_stride, count * kFloat);
}

}  // namespace

Cache::Cache(const Sizes& sizes, std::shared_ptr<Memory> memory, int capacity)
    : memory_(std::move(memory)),
      kv_heads_(static_cast<std::size_t>(sizes.kv_heads)),
      head_dim_(static_cast<std::size_t>(sizes.head_dim)),
      capacities_(sizes.capacities),
      context_(sizes.context),
      capacity_(capacity) {
  for (int i = 0; i < sizes.layers; ++i) {
    keys_.emplace_back(memory_, layer_floats(capacity));
    values_.emplace_back(memory_, layer_floats(capacity));
  }
}

Status Cache::grow(std::int64_t slots) {
  if (slots > context_) {
    return Error{
        "out_of_range",
        "slot " + std::to_string(slots - 1) + " is beyond the context of " + std::to_string(context_) + " slots",
        "end the text earlier, or export with a larger context"};
  }
  if (slots <= capacity_) return std::nullopt;
  const auto given = std::lower_bound(capacities_.begin(), capacities_.end(), slots);
  const int steps = std::min(context_, (static_cast<int>(slots) + kCacheStep - 1) / kCacheStep * kCacheStep);
  const int grown = given != capacities_.end() ? *given : steps;
  // All buffers first: running out of memory half way must not leave layers of two sizes.
  std::vector<Buffer> keys, values;
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    keys.emplace_back(memory_, layer_floats(grown));
    values.emplace_back(memory_, layer_floats(grown));
  }
  const std::size_t old_slots = at(capacity_), new_slots = at(grown);
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    copy_rows(keys[i].floats(), new_slots, keys_[i].floats(), old_slots, key_rows(), old_slots);
    copy_rows(values[i].floats(), new_slots * head_dim_, values_[i].floats(), old_slots * head_dim_, kv_heads_,
              old_slots * head_dim_);
  }
  keys_ = std::move(keys);
  values_ = std::move(values);
  capacity_ = grown;
  ++epoch_;
  return std::nullopt;
}

void Cache::store(const std::vector<Buffer>& keys, const std::vector<Buffer>& values, int width,
                  const std::vector<std::int32_t>& rows, const std::vector<std::int32_t>& slots) {
  const std::size_t slot_count = at(capacity_), row_count = at(width);
  for (std::size_t layer = 0; layer < keys_.size(); ++layer) {
    const float* from = keys[layer].floats();
    float* to = keys_[layer].floats();
    for (std::size_t i = 0; i < key_rows(); ++i, from += row_count, to += slot_count) {
      for (std::size_t r = 0; r < rows.size(); ++r) to[at(slots[r])] = from[at(rows[r])];
    }
    from = values[layer].floats();
    to = values_[layer].floats();
    for (std::size_t head = 0; head < kv_heads_; ++head) {
      for (std::size_t r = 0; r < rows.size(); ++r) {
        std::memcpy(to + (head * slot_count + at(slots[r])) * head_dim_,
                    from + (head * row_count + at(rows[r])) * head_dim_, head_dim_ * kFloat);
      }
    }
  }
}

void Cache::move(const std::vector<std::int32_t>& source, const std::vector<std::int32_t>& target) {
  const std::size_t slot_count = at(capacity_);
  for (std::size_t layer = 0; layer < keys_.size(); ++layer) {
    float* key = keys_[layer].floats();
    for (std::size_t i = 0; i < key_rows(); ++i, key += slot_count) {
      for (std::size_t r = 0; r < source.size(); ++r) key[at(target[r])] = key[at(source[r])];
    }
    float* value = values_[layer].floats();
    for (std::size_t head = 0; head < kv_heads_; ++head, value += slot_count * head_dim_) {
      for (std::size_t r = 0; r < source.size(); ++r) {
        if (source[r] == target[r]) continue;
        std::memcpy(value + at(target[r]) * head_dim_, value + at(source[r]) * head_dim_, head_dim_ * kFloat);
      }
    }
  }
}

void Cache::reset(int capacity) {
  if (capacity >= capacity_) return;
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    keys_[i] = Buffer(memory_, layer_floats(capacity));
    values_[i] = Buffer(memory_, layer_floats(capacity));
  }
  capacity_ = capacity;
  ++epoch_;
}

void Cache::save(int layer, int start, int count, float* keys, float* values) const {
  const std::size_t n = at(count), slots = at(capacity_), first = at(start);
  copy_rows(keys, n, keys_[at(layer)].floats() + first, slots, key_rows(), n);
  copy_rows(values, n * head_dim_, values_[at(layer)].floats() + first * head_dim_, slots * head_dim_, kv_heads_,
            n * head_dim_);
}

void Cache::restore(int layer, int start, int count, const float* keys, const float* values) {
  const std::size_t n = at(count), slots = at(capacity_), first = at(start);
  copy_rows(keys_[at(layer)].floats() + first, slots, keys, n, key_rows(), n);
  copy_rows(values_[at(layer)].floats() + first * head_dim_, slots * head_dim_, values, n * head_dim_, kv_heads_,
            n * head_dim_);
}

}  // namespace hexgraft
