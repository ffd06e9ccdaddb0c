// The K/V cache in the graph's own layout: slots are written, moved and grown here, and nowhere else.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "memory.h"
#include "result.h"
#include "sizes.h"

namespace hexgraft {

// Slots a growing cache adds at a time: short chats do not pay for long attention.
constexpr int kCacheStep = 256;

// Per layer keys [kv_heads][head_dim][C] (after RoPE) and values [kv_heads][C][head_dim], zero at first: a masked
// column still takes part in a product with probability 0, so unwritten slots must hold finite numbers.
class Cache {
 public:
  Cache(const Sizes& sizes, std::shared_ptr<Memory> memory, int capacity);

  int capacity() const { return capacity_; }
  // Changes whenever a buffer's address does; bindings made under another number are stale.
  std::uint64_t epoch() const { return epoch_; }
  float* keys(int layer) { return keys_[static_cast<std::size_t>(layer)].floats(); }
  float* values(int layer) { return values_[static_cast<std::size_t>(layer)].floats(); }

  // Make room for `slots` slots: the next of the sizes' capacities, or whole steps up to the context.
  Status grow(std::int64_t slots);
  // Copy rows of staged keys [kv_heads][head_dim][width] and values [kv_heads][width][head_dim], all layers, into
  // slots below the capacity. O(rows), whatever the context.
  void store(const std::vector<Buffer>& keys, const std::vector<Buffer>& values, int width,
             const std::vector<std::int32_t>& rows, const std::vector<std::int32_t>& slots);
  // Copy slots onto slots in place; both ascending, every target <= its source, so no copy reads what one wrote.
  void move(const std::vector<std::int32_t>& source, const std::vector<std::int32_t>& target);
  // Back to `capacity` slots, so that a second text is computed exactly as the first one was.
  void reset(int capacity);
  // Slots start..start+count-1 of one layer: keys [kv_heads][head_dim][count], values [kv_heads][count][head_dim].
  void save(int layer, int start, int count, float* keys, float* values) const;
  void restore(int layer, int start, int count, const float* keys, const float* values);

 private:
  std::size_t key_rows() const { return kv_heads_ * head_dim_; }
  std::size_t layer_floats(int capacity) const { return key_rows() * static_cast<std::size_t>(capacity); }

  std::shared_ptr<Memory> memory_;
  std::size_t kv_heads_, head_dim_;
  std::vector<int> capacities_;
  int context_, capacity_;
  std::uint64_t epoch_ = 1;
  std::vector<Buffer> keys_, values_;
};

}  // namespace hexgraft
