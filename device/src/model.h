// A model with a cache: the verbs of the session contract, checked against its sizes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache.h"
#include "graphs.h"
#include "pass.h"
#include "result.h"
#include "sizes.h"

namespace hexgraft {

struct PassTimes {
  int count = 0, width = 0;
  double runtime = 0, total = 0;  // seconds inside the runtime, and of the whole forward
};

class Model {
 public:
  // `capacity` is what the cache starts with; it grows up to the context.
  Model(const Sizes& sizes, std::shared_ptr<Memory> memory, int capacity, std::unique_ptr<Graphs> graphs);

  const Sizes& sizes() const { return sizes_; }
  const Memory& memory() const { return *memory_; }
  const Graphs& graphs() const { return *graphs_; }
  void rest() { graphs_->rest(); }
  int staged() const { return staged_; }
  int capacity() const { return cache_.capacity(); }

  // One pass; its rows are readable and storable until the next. A pass that fails leaves no rows.
  Result<PassTimes> forward(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& positions,
                            const Visibility& visible, const States& states = {});
  Status store(const std::vector<std::int32_t>& rows, const std::vector<std::int32_t>& slots);
  Status move(const std::vector<std::int32_t>& source, const std::vector<std::int32_t>& target);
  // Forget the cache's content, and go back to its first capacity.
  void reset();
  // Slots of one layer, as Cache has them; `keys` and `values` hold kv_heads * head_dim * count floats each.
  Status save(int layer, int start, int count, float* keys, float* values) const;
  Status restore(int layer, int start, int count, const float* keys, const float* values);

  // Whether the last pass has the logits of a row: graphs may give those of their last row alone.
  bool gives_logits(int row) const { return row == staged_ - 1 || !sizes_.border(width_).last_logits; }
  // One row of the last pass; `row` below staged(). Logits are valid until the next row's.
  const float* logits(int row) const;
  const float* hidden(int row) const;

 private:
  int pad(int count) const;

  Sizes sizes_;
  std::shared_ptr<Memory> memory_;
  Cache cache_;
  Pass pass_;
  std::unique_ptr<Graphs> graphs_;
  // Where in the text the last pass's rows (pads too) and the cache's slots stand: windows are measured by it.
  std::vector<std::int32_t> row_positions_, slot_positions_;
  int first_capacity_;
  int staged_ = 0, width_ = 0;
};

}  // namespace hexgraft
