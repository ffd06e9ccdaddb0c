#include "cache.h"

#include <algorithm>
#include <string>
#include <utility>

namespace hexgraft {
namespace {

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

// From [blocks][rows][columns] to [blocks][columns][rows].
void transpose(const float* from, std::size_t blocks, std::size_t rows, std::size_t columns, float* to) {
  for (std::size_t block = 0; block < blocks; ++block, to += rows * columns) {
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t column = 0; column < columns; ++column) to[column * rows + row] = *from++;
    }
  }
}

}  // namespace

Cache::Cache(const Sizes& sizes, std::shared_ptr<Memory> memory, int capacity)
    : memory_(std::move(memory)),
      layers_(at(sizes.layers)),
      kv_heads_(at(sizes.kv_heads)),
      head_dim_(at(sizes.head_dim)),
      capacities_(sizes.capacities),
      columns_(sizes.columns),
      context_(sizes.context),
      capacity_(capacity),
      tail_(sizes.joined ? sizes.max_width : 0),
      codes_(sizes.kv_codes) {
  const int width = columns_ > 0 ? sizes.widths.front() : 0;
  views_.emplace(width, make_view(past(width)));
}

Cache::View Cache::make_view(int capacity) const {
  View made;
  const Order values = by_slot(kv_heads_, head_dim_);
  const Order keys = joined() ? values : by_dimension(kv_heads_, head_dim_);
  const std::size_t count = at(capacity + tail_);
  for (std::size_t layer = 0; layer < layers_; ++layer) {
    const KvCode code = codes_.empty() ? KvCode{} : codes_[layer];
    made.keys.emplace_back(memory_, keys, code.key, count);
    made.values.emplace_back(memory_, values, code.value, count);
  }
  return made;
}

void Cache::copy_slots(const View& from, View& to, int capacity) const {
  const auto copy = [&](const Slots& in, Slots& out) {
    out.copy(in, 0, 0, at(capacity_));
    out.copy(in, at(capacity_), at(capacity), at(tail_));
  };
  for (std::size_t i = 0; i < layers_; ++i) {
    copy(from.keys[i], to.keys[i]);
    copy(from.values[i], to.values[i]);
  }
}

void Cache::use(int width) {
  if (columns_ == 0 || views_.count(width) > 0) return;
  View made = make_view(past(width));
  copy_slots(views_.begin()->second, made, past(width));
  views_.emplace(width, std::move(made));
  ++epoch_;
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
  const int step = slots <= kFewSlots ? kCacheStep : kCoarseStep;
  const int steps = std::min(context_, (static_cast<int>(slots) + step - 1) / step * step);
  const int grown = given != capacities_.end() ? *given : steps;
  // All buffers first: running out of memory half way must not leave layers of two sizes.
  View made = make_view(grown);
  copy_slots(views_.begin()->second, made, grown);
  views_.begin()->second = std::move(made);
  capacity_ = grown;
  ++epoch_;
  return std::nullopt;
}

void Cache::store(const std::vector<Buffer>& keys, const std::vector<Buffer>& values, int width,
                  const std::vector<std::int32_t>& rows, const std::vector<std::int32_t>& slots) {
  for (const std::int32_t written : slots) used_ = std::max(used_, at(written) + 1);
  if (joined()) {
    std::vector<std::int32_t> behind = rows;
    for (std::int32_t& row : behind) row += capacity_;
    return move(behind, slots);
  }
  for (auto& [_, view] : views_) {
    for (std::size_t i = 0; i < layers_; ++i) {
      view.keys[i].put(keys[i].data(), at(width), rows, slots);
      view.values[i].put(values[i].data(), at(width), rows, slots);
    }
  }
}

void Cache::move(const std::vector<std::int32_t>& source, const std::vector<std::int32_t>& target) {
  for (auto& [_, view] : views_) {
    for (std::size_t i = 0; i < layers_; ++i) {
      view.keys[i].put_own(source, target);
      view.values[i].put_own(source, target);
    }
  }
}

void Cache::reset(int capacity) {
  if (capacity >= capacity_) return clear();
  views_.begin()->second = make_view(capacity);
  capacity_ = capacity;
  used_ = 0;
  ++epoch_;
}

void Cache::clear() {
  const auto zero = [&](Slots& slots) {
    slots.clear(0, used_);
    slots.clear(at(capacity_), at(tail_));
  };
  for (auto& [_, view] : views_) {
    std::for_each(view.keys.begin(), view.keys.end(), zero);
    std::for_each(view.values.begin(), view.values.end(), zero);
  }
  used_ = 0;
}

void Cache::save(int layer, int start, int count, float* keys, float* values) const {
  const View& view = views_.begin()->second;
  const std::size_t n = at(count), first = at(start), i = at(layer);
  view.values[i].read(first, n, values);
  if (!joined()) return view.keys[i].read(first, n, keys);
  std::vector<float> rows(kv_heads_ * n * head_dim_);
  view.keys[i].read(first, n, rows.data());
  transpose(rows.data(), kv_heads_, n, head_dim_, keys);
}

void Cache::restore(int layer, int start, int count, const float* keys, const float* values) {
  const std::size_t n = at(count), first = at(start), i = at(layer);
  used_ = std::max(used_, first + n);
  std::vector<float> rows(joined() ? kv_heads_ * n * head_dim_ : 0);
  if (joined()) transpose(keys, kv_heads_, head_dim_, n, rows.data());
  for (auto& [_, view] : views_) {
    view.keys[i].write(first, n, joined() ? rows.data() : keys);
    view.values[i].write(first, n, values);
  }
}

}  // namespace hexgraft
