#include "cache.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace hexgraft {
namespace {

using Bytes = unsigned char;

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

// Copy `rows` rows of `bytes` bytes between arrays whose rows lie `to_stride` and `from_stride` bytes apart.
void copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride, std::size_t rows,
               std::size_t bytes) {
  for (std::size_t i = 0; i < rows; ++i) {
    std::memcpy(static_cast<Bytes*>(to) + i * to_stride, static_cast<const Bytes*>(from) + i * from_stride, bytes);
  }
}

// For each of `rows` rows: to[targets[i]] = from[sources[i]], numbers of one size.
template <class Number>
void copy_columns(void* to, std::size_t to_stride, const void* from, std::size_t from_stride, std::size_t rows,
                  const std::vector<std::int32_t>& sources, const std::vector<std::int32_t>& targets) {
  auto* out = static_cast<Number*>(to);
  const auto* in = static_cast<const Number*>(from);
  for (std::size_t row = 0; row < rows; ++row, in += from_stride, out += to_stride) {
    for (std::size_t i = 0; i < sources.size(); ++i) out[at(targets[i])] = in[at(sources[i])];
  }
}

void copy_columns(std::size_t bytes, void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                  std::size_t rows, const std::vector<std::int32_t>& sources,
                  const std::vector<std::int32_t>& targets) {
  switch (bytes) {
    case 1: return copy_columns<std::uint8_t>(to, to_stride, from, from_stride, rows, sources, targets);
    case 2: return copy_columns<std::uint16_t>(to, to_stride, from, from_stride, rows, sources, targets);
    default: return copy_columns<std::uint32_t>(to, to_stride, from, from_stride, rows, sources, targets);
  }
}

}  // namespace

Cache::Cache(const Sizes& sizes, std::shared_ptr<Memory> memory, int capacity)
    : memory_(std::move(memory)),
      layers_(static_cast<std::size_t>(sizes.layers)),
      kv_heads_(static_cast<std::size_t>(sizes.kv_heads)),
      head_dim_(static_cast<std::size_t>(sizes.head_dim)),
      capacities_(sizes.capacities),
      columns_(sizes.columns),
      context_(sizes.context),
      capacity_(capacity),
      codes_(sizes.kv_codes),
      bytes_(bytes_of(codes_.empty() ? Type::kFloat : codes_.front().key.type)) {
  const int width = columns_ > 0 ? sizes.widths.front() : 0;
  views_.emplace(width, make_view(at(past(width))));
}

Cache::View Cache::make_view(std::size_t columns) const {
  View made;
  made.columns = columns;
  const std::size_t count = key_rows() * columns;
  for (std::size_t layer = 0; layer < layers_; ++layer) {
    for (auto* buffers : {&made.keys, &made.values}) {
      buffers->emplace_back(memory_, (count * bytes_ + 3) / 4);
      const KvCode& both = code(layer);
      fill_zero(buffers->back().data(), count, buffers == &made.keys ? both.key : both.value);
    }
  }
  return made;
}

void Cache::copy_slots(const View& from, View& to, std::size_t count) const {
  const std::size_t slot = head_dim_ * bytes_;
  for (std::size_t i = 0; i < layers_; ++i) {
    copy_rows(to.keys[i].data(), to.columns * bytes_, from.keys[i].data(), from.columns * bytes_, key_rows(),
              count * bytes_);
    copy_rows(to.values[i].data(), to.columns * slot, from.values[i].data(), from.columns * slot, kv_heads_,
              count * slot);
  }
}

void Cache::use(int width) {
  if (columns_ == 0 || views_.count(width) > 0) return;
  View made = make_view(at(past(width)));
  copy_slots(views_.begin()->second, made, at(capacity_));
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
  copy_slots(views_.begin()->second, made, at(capacity_));
  views_.begin()->second = std::move(made);
  capacity_ = grown;
  ++epoch_;
  return std::nullopt;
}

void Cache::store(const std::vector<Buffer>& keys, const std::vector<Buffer>& values, int width,
                  const std::vector<std::int32_t>& rows, const std::vector<std::int32_t>& slots) {
  const std::size_t row_count = at(width), slot = head_dim_ * bytes_;
  for (const std::int32_t written : slots) used_ = std::max(used_, at(written) + 1);
  for (auto& entry : views_) {
    View& view = entry.second;
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      copy_columns(bytes_, view.keys[layer].data(), view.columns, keys[layer].data(), row_count, key_rows(), rows,
                   slots);
      const auto* from = static_cast<const Bytes*>(values[layer].data());
      auto* to = static_cast<Bytes*>(view.values[layer].data());
      for (std::size_t head = 0; head < kv_heads_; ++head) {
        for (std::size_t r = 0; r < rows.size(); ++r) {
          std::memcpy(to + (head * view.columns + at(slots[r])) * slot,
                      from + (head * row_count + at(rows[r])) * slot, slot);
        }
      }
    }
  }
}

void Cache::move(const std::vector<std::int32_t>& source, const std::vector<std::int32_t>& target) {
  const std::size_t slot = head_dim_ * bytes_;
  for (auto& entry : views_) {
    View& view = entry.second;
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      void* keys = view.keys[layer].data();
      copy_columns(bytes_, keys, view.columns, keys, view.columns, key_rows(), source, target);
      auto* value = static_cast<Bytes*>(view.values[layer].data());
      for (std::size_t head = 0; head < kv_heads_; ++head, value += view.columns * slot) {
        for (std::size_t r = 0; r < source.size(); ++r) {
          if (source[r] == target[r]) continue;
          std::memcpy(value + at(target[r]) * slot, value + at(source[r]) * slot, slot);
        }
      }
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
  for (auto& entry : views_) {
    View& view = entry.second;
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      const KvCode& both = code(layer);
      auto* key = static_cast<Bytes*>(view.keys[layer].data());
      for (std::size_t row = 0; row < key_rows(); ++row) {
        fill_zero(key + row * view.columns * bytes_, used_, both.key);
      }
      auto* value = static_cast<Bytes*>(view.values[layer].data());
      for (std::size_t head = 0; head < kv_heads_; ++head) {
        fill_zero(value + head * view.columns * head_dim_ * bytes_, used_ * head_dim_, both.value);
      }
    }
  }
  used_ = 0;
}

void Cache::save(int layer, int start, int count, float* keys, float* values) const {
  const View& view = views_.begin()->second;
  const std::size_t n = at(count), first = at(start), i = at(layer);
  const KvCode& both = code(i);
  const auto* key = static_cast<const Bytes*>(view.keys[i].data());
  for (std::size_t row = 0; row < key_rows(); ++row) {
    to_real(key + (row * view.columns + first) * bytes_, n, both.key, keys + row * n);
  }
  const auto* value = static_cast<const Bytes*>(view.values[i].data());
  for (std::size_t head = 0; head < kv_heads_; ++head) {
    to_real(value + (head * view.columns + first) * head_dim_ * bytes_, n * head_dim_, both.value,
            values + head * n * head_dim_);
  }
}

void Cache::restore(int layer, int start, int count, const float* keys, const float* values) {
  const std::size_t n = at(count), first = at(start), i = at(layer);
  const KvCode& both = code(i);
  used_ = std::max(used_, first + n);
  for (auto& entry : views_) {
    View& view = entry.second;
    auto* key = static_cast<Bytes*>(view.keys[i].data());
    for (std::size_t row = 0; row < key_rows(); ++row) {
      to_stored(keys + row * n, n, both.key, key + (row * view.columns + first) * bytes_);
    }
    auto* value = static_cast<Bytes*>(view.values[i].data());
    for (std::size_t head = 0; head < kv_heads_; ++head) {
      to_stored(values + head * n * head_dim_, n * head_dim_, both.value,
                value + (head * view.columns + first) * head_dim_ * bytes_);
    }
  }
}

}  // namespace hexgraft
