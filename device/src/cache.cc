#include "cache.h"

#include <algorithm>
#include <string>
#include <utility>

namespace hexgraft {
namespace {

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

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
      codes_(sizes.kv_codes) {
  const int width = columns_ > 0 ? sizes.widths.front() : 0;
  views_.emplace(width, make_view(at(past(width))));
}

Cache::View Cache::make_view(std::size_t count) const {
  View made;
  for (std::size_t layer = 0; layer < layers_; ++layer) {
    const KvCode code = codes_.empty() ? KvCode{} : codes_[layer];
    made.keys.emplace_back(memory_, by_dimension(kv_heads_, head_dim_), code.key, count);
    made.values.emplace_back(memory_, by_slot(kv_heads_, head_dim_), code.value, count);
  }
  return made;
}

void Cache::copy_slots(const View& from, View& to) const {
  for (std::size_t i = 0; i < layers_; ++i) {
    to.keys[i].copy(from.keys[i], 0, 0, at(capacity_));
    to.values[i].copy(from.values[i], 0, 0, at(capacity_));
  }
}

void Cache::use(int width) {
  if (columns_ == 0 || views_.count(width) > 0) return;
  View made = make_view(at(past(width)));
  copy_slots(views_.begin()->second, made);
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
  View made = make_view(at(grown));
  copy_slots(views_.begin()->second, made);
  views_.begin()->second = std::move(made);
  capacity_ = grown;
  ++epoch_;
  return std::nullopt;
}

void Cache::store(const std::vector<Buffer>& keys, const std::vector<Buffer>& values, int width,
                  const std::vector<std::int32_t>& rows, const std::vector<std::int32_t>& slots) {
  for (const std::int32_t written : slots) used_ = std::max(used_, at(written) + 1);
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
  views_.begin()->second = make_view(at(capacity));
  capacity_ = capacity;
  used_ = 0;
  ++epoch_;
}

void Cache::clear() {
  for (auto& [_, view] : views_) {
    for (std::size_t i = 0; i < layers_; ++i) {
      view.keys[i].clear(0, used_);
      view.values[i].clear(0, used_);
    }
  }
  used_ = 0;
}

void Cache::save(int layer, int start, int count, float* keys, float* values) const {
  const View& view = views_.begin()->second;
  view.keys[at(layer)].read(at(start), at(count), keys);
  view.values[at(layer)].read(at(start), at(count), values);
}

void Cache::restore(int layer, int start, int count, const float* keys, const float* values) {
  used_ = std::max(used_, at(start) + at(count));
  for (auto& [_, view] : views_) {
    view.keys[at(layer)].write(at(start), at(count), keys);
    view.values[at(layer)].write(at(start), at(count), values);
  }
}

}  // namespace hexgraft
