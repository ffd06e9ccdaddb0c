// One pass through a graph: its inputs, made from tokens, positions and visibility, and the buffers it fills.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "memory.h"
#include "sizes.h"

namespace hexgraft {

// What each of T rows sees; never a function of positions or slots. Bits are packed little end first, one row after
// the other, each row in whole bytes: `rows` [T][ceil(T/8)] (empty: causal), `seen` [T][ceil(S/8)] over `slots`
// [S]. Every row sees slots 0..prefix-1 and itself; `seen` has the last word on the slots it names.
struct Visibility {
  std::int32_t prefix = 0;
  std::vector<std::uint8_t> rows;
  std::vector<std::int32_t> slots;
  std::vector<std::uint8_t> seen;

  // Whether one of `count` rows sees a row behind it.
  bool looks_ahead(int count) const;
};

// What stood before each of T rows of a draft head: of the target, and of the head itself. Empty for other models.
struct States {
  std::vector<float> features, hidden;  // [T][features_in], [T][d]
};

// Buffers as large as the widest pass so far; narrower passes use their fronts.
class Pass {
 public:
  Pass(const Sizes& sizes, std::shared_ptr<Memory> memory);

  // Make room for `width` rows over `capacity` slots.
  void resize(int width, int capacity);
  // Write all inputs. Rows from tokens.size() to width are pads: token 0, the first row's position, seeing
  // themselves. Both position arrays: where in the text the pass's rows [T] and the cache's slots [C] stand.
  void fill(int width, int capacity, const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& rows,
            const std::vector<std::int32_t>& slots, const Visibility& visible);
  // Write a draft head's further inputs; rows beyond those of `states` are zero.
  void fill_states(int width, const States& states);
  // One row of logits as real numbers, valid until the next call.
  const float* logits_row(int width, int row) const;
  // Changes whenever a buffer's address does.
  std::uint64_t epoch() const { return epoch_; }

  // What a graph of a width reads and writes: these buffers themselves, or those beside them in its own numbers.
  void* mask_data(int width) { return data(sizes_.border(width).mask, mask, stored_mask_); }
  void* cos_data(int width) { return data(sizes_.border(width).cos, cos, stored_cos_); }
  void* sin_data(int width) { return data(sizes_.border(width).sin, sin, stored_sin_); }
  void* logits_data(int width) { return data(sizes_.border(width).logits, logits, stored_logits_); }

  Buffer ids, mask, cos, sin;               // [T] int32, [T][C+T], [T][head_dim/2] twice
  Buffer mask_local, cos_local, sin_local;  // the same for layers with a window
  Buffer logits, hidden;                    // [T][sizes.logits], [T][sizes.features]
  Buffer features_in, hidden_in;            // [T][sizes.features_in], [T][d]: of draft heads
  // Per layer [kv_heads][head_dim][T], [kv_heads][T][head_dim], as stored; none in the joined layout, whose graphs
  // write into the cache's own buffers.
  std::vector<Buffer> keys, values;

 private:
  static void* data(const Code& code, Buffer& real, Buffer& stored) {
    return code.type == Type::kFloat ? real.data() : stored.data();
  }
  void fill_mask(int width, int capacity, int count, const Visibility& visible);
  void fill_local_mask(int width, int capacity, const std::vector<std::int32_t>& rows,
                       const std::vector<std::int32_t>& slots);

  Sizes sizes_;
  std::shared_ptr<Memory> memory_;
  int width_ = 0, capacity_ = 0;
  std::uint64_t epoch_ = 1;
  // In the numbers of the graphs, two bytes each at most; empty where all is float32.
  Buffer stored_mask_, stored_cos_, stored_sin_, stored_logits_;
  mutable std::vector<float> real_row_;
};

}  // namespace hexgraft
