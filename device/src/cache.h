// The K/V cache in the graphs' own layout: slots are written, moved and grown here, and nowhere else.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "memory.h"
#include "result.h"
#include "sizes.h"
#include "slots.h"

namespace hexgraft {

// Slots a growing cache adds at a time: a pass costs what the cache could hold, and short chats are not to pay for
// long attention. Beyond kFewSlots it adds kCoarseStep at a time, since growth copies all there are.
constexpr int kCacheStep = 64;
constexpr int kFewSlots = 512;
constexpr int kCoarseStep = 256;

// Per layer keys [kv_heads][head_dim][C] (after RoPE) and values [kv_heads][C][head_dim], as the graphs store them,
// zero at first: a masked column still takes part in a product with probability 0, so unwritten slots must hold
// finite numbers.
//
// In the vendor's layout (sizes.columns > 0) the graph of width T reads CL-T columns. Each width in use has buffers
// of its own then, all with the same slots, so that a change of width moves nothing.
//
// In the joined layout (sizes.joined) keys lie as values do, [kv_heads][S][head_dim], and S is C and the widest
// pass: the graphs leave the rows of a pass behind the C slots, where they stay for `store` until the next pass.
class Cache {
 public:
  Cache(const Sizes& sizes, std::shared_ptr<Memory> memory, int capacity);

  int capacity() const { return capacity_; }
  // Columns of the buffers that the graph of a width reads; slots are the first `capacity` of them.
  int past(int width) const { return columns_ > 0 ? columns_ - width : capacity_; }
  // Slots a buffer of the graph of a width has in all.
  int extent(int width) const { return past(width) + tail_; }
  // Changes whenever a buffer's address does; bindings made under another number are stale.
  std::uint64_t epoch() const { return epoch_; }
  // Have the buffers that the graph of a width reads.
  void use(int width);
  void* keys(int layer, int width) { return view(width).keys[static_cast<std::size_t>(layer)].data(); }
  void* values(int layer, int width) { return view(width).values[static_cast<std::size_t>(layer)].data(); }
  // The same of the layouts that have one for all widths.
  float* keys(int layer) { return static_cast<float*>(keys(layer, 0)); }
  float* values(int layer) { return static_cast<float*>(values(layer, 0)); }

  // Make room for `slots` slots: the next of the sizes' capacities, or whole steps up to the context.
  Status grow(std::int64_t slots);
  // Copy rows of the last pass into slots below the capacity: of staged keys [kv_heads][head_dim][width] and values
  // [kv_heads][width][head_dim], all layers, or in the joined layout of those behind the slots. O(rows), whatever the
  // context.
  void store(const std::vector<Buffer>& keys, const std::vector<Buffer>& values, int width,
             const std::vector<std::int32_t>& rows, const std::vector<std::int32_t>& slots);
  // Copy slots onto slots in place, one after the other. No copy may read what one before it wrote: it does not
  // where both are ascending and every target <= its source.
  void move(const std::vector<std::int32_t>& source, const std::vector<std::int32_t>& target);
  // Back to `capacity` slots, all zero, so that a second text is computed exactly as the first one was. Takes time
  // for the slots that were written only, unless the buffers shrink.
  void reset(int capacity);
  // Slots start..start+count-1 of one layer as real numbers: keys [kv_heads][head_dim][count], values
  // [kv_heads][count][head_dim].
  void save(int layer, int start, int count, float* keys, float* values) const;
  void restore(int layer, int start, int count, const float* keys, const float* values);

 private:
  // The buffers that graphs read: of one width, or of all.
  struct View {
    std::vector<Slots> keys, values;  // a layer each
  };

  bool joined() const { return tail_ > 0; }
  View& view(int width) { return columns_ > 0 ? views_.at(width) : views_.begin()->second; }
  // Zeros for so many slots, and for the rows of a pass behind them where they stand there.
  View make_view(int capacity) const;
  // Copy all slots to a view of `capacity`, and the rows of the last pass to behind these.
  void copy_slots(const View& from, View& to, int capacity) const;
  void clear();

  std::shared_ptr<Memory> memory_;
  std::size_t layers_, kv_heads_, head_dim_;
  std::vector<int> capacities_;
  int columns_, context_, capacity_;
  int tail_;                   // slots behind those of the cache
  std::vector<KvCode> codes_;  // a layer each, empty where all is float32
  std::uint64_t epoch_ = 1;
  std::size_t used_ = 0;       // slots from here on have not been written
  std::map<int, View> views_;  // by width; one at 0 in layouts that need no more
};

}  // namespace hexgraft
