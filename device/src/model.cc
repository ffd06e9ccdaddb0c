#include "model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>

namespace hexgraft {
namespace {

using Clock = std::chrono::steady_clock;

Error refuse(const std::string& message) { return Error{"bad_field", message, "see the operation in PROTOCOL.md"}; }

bool ascending(const std::vector<std::int32_t>& numbers) {
  return std::adjacent_find(numbers.begin(), numbers.end(), std::greater_equal<>()) == numbers.end();
}

bool finite(const float* numbers, std::size_t count) {
  return std::all_of(numbers, numbers + count, [](float x) { return std::isfinite(x); });
}

}  // namespace

Model::Model(const Sizes& sizes, std::shared_ptr<Memory> memory, int capacity, std::unique_ptr<Graphs> graphs)
    : sizes_(sizes),
      memory_(std::move(memory)),
      cache_(sizes, memory_, capacity),
      pass_(sizes, memory_),
      graphs_(std::move(graphs)),
      slot_positions_(static_cast<std::size_t>(sizes.context)),
      first_capacity_(capacity) {}

int Model::pad(int count) const {
  if (sizes_.widths.empty()) return count;
  // Graphs that give the logits of one row alone serve only what no other does.
  for (const int width : sizes_.widths) {
    if (width >= count && !sizes_.border(width).last_logits) return width;
  }
  return *std::lower_bound(sizes_.widths.begin(), sizes_.widths.end(), count);
}

Result<PassTimes> Model::forward(const std::vector<std::int32_t>& tokens,
                                 const std::vector<std::int32_t>& positions, const Visibility& visible,
                                 const States& states) {
  const auto start = Clock::now();
  staged_ = 0;
  const int count = static_cast<int>(tokens.size());
  if (count < 1 || count > sizes_.max_width || positions.size() != tokens.size()) {
    return refuse("a pass takes 1 to " + std::to_string(sizes_.max_width) + " tokens and as many positions");
  }
  if (sizes_.joined && visible.looks_ahead(count)) {
    return Error{"bad_field", "a row sees a later one, which graphs of this cache layout always hide",
                 "let parents stand before their children"};
  }
  std::int64_t slots = visible.prefix;
  for (const std::int32_t slot : visible.slots) slots = std::max<std::int64_t>(slots, std::int64_t{slot} + 1);
  if (Status problem = cache_.grow(slots)) return *problem;
  const int width = pad(count), past = cache_.past(width);
  cache_.use(width);
  pass_.resize(width, past);
  row_positions_.assign(static_cast<std::size_t>(width), positions.front());
  std::copy(positions.begin(), positions.end(), row_positions_.begin() + sizes_.first_row(width, count));
  pass_.fill(width, past, tokens, row_positions_, slot_positions_, visible);
  pass_.fill_states(width, states);
  Result<double> seconds = graphs_->run(width, cache_, pass_);
  if (!seconds) return seconds.error();
  staged_ = count;
  width_ = width;
  return PassTimes{count, width, *seconds, std::chrono::duration<double>(Clock::now() - start).count()};
}

Status Model::store(const std::vector<std::int32_t>& rows, const std::vector<std::int32_t>& slots) {
  if (rows.size() != slots.size()) return refuse("a store needs as many slots as rows");
  for (const std::int32_t row : rows) {
    if (row < 0 || row >= staged_) {
      return refuse("store of row " + std::to_string(row) + ", the last pass has " + std::to_string(staged_) +
                    " rows");
    }
  }
  std::vector<std::int32_t> sorted = slots;
  std::sort(sorted.begin(), sorted.end());
  if (!ascending(sorted)) return refuse("a store names a slot twice");
  if (sorted.empty()) return std::nullopt;
  if (sorted.front() < 0) return refuse("a store names a negative slot");
  if (Status problem = cache_.grow(std::int64_t{sorted.back()} + 1)) return problem;
  std::vector<std::int32_t> places = rows;
  for (std::int32_t& place : places) place += sizes_.first_row(width_, staged_);
  cache_.store(pass_.keys, pass_.values, width_, places, slots);
  for (std::size_t i = 0; i < places.size(); ++i) {
    slot_positions_[static_cast<std::size_t>(slots[i])] = row_positions_[static_cast<std::size_t>(places[i])];
  }
  return std::nullopt;
}

Status Model::move(const std::vector<std::int32_t>& source, const std::vector<std::int32_t>& target) {
  if (source.size() != target.size()) return refuse("a move needs as many targets as sources");
  if (source.empty()) return std::nullopt;
  if (!ascending(source) || !ascending(target) || target.front() < 0) return refuse("a move wants ascending slots");
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (target[i] > source[i]) return refuse("a move wants every target at or below its source");
  }
  if (source.back() >= cache_.capacity()) {
    return refuse("move of slot " + std::to_string(source.back()) + ", the cache has " +
                  std::to_string(cache_.capacity()));
  }
  cache_.move(source, target);
  for (std::size_t i = 0; i < source.size(); ++i) {
    slot_positions_[static_cast<std::size_t>(target[i])] = slot_positions_[static_cast<std::size_t>(source[i])];
  }
  return std::nullopt;
}

void Model::reset() {
  cache_.reset(first_capacity_);
  staged_ = 0;
}

Status Model::save(int layer, int start, int count, float* keys, float* values) const {
  if (layer < 0 || layer >= sizes_.layers || start < 0 || count < 0 || start > cache_.capacity() - count) {
    return refuse("save of slots that the cache does not have");
  }
  if (count == 0) return std::nullopt;
  cache_.save(layer, start, count, keys, values);
  return std::nullopt;
}

Status Model::restore(int layer, int start, int count, const float* keys, const float* values) {
  if (layer < 0 || layer >= sizes_.layers || start < 0 || count < 0) return refuse("restore of impossible slots");
  if (count == 0) return std::nullopt;
  const std::size_t floats = static_cast<std::size_t>(sizes_.kv_heads) * static_cast<std::size_t>(sizes_.head_dim) *
                             static_cast<std::size_t>(count);
  if (!finite(keys, floats) || !finite(values, floats))
    return refuse("a restore holds numbers that are not finite");
  if (Status problem = cache_.grow(std::int64_t{start} + count)) return problem;
  cache_.restore(layer, start, count, keys, values);
  // What is saved is committed, and committed slots stand in order of position.
  for (int slot = start; slot < start + count; ++slot) slot_positions_[static_cast<std::size_t>(slot)] = slot;
  return std::nullopt;
}

const float* Model::logits(int row) const { return pass_.logits_row(width_, row); }

const float* Model::hidden(int row) const {
  return pass_.hidden.floats() + static_cast<std::size_t>(row) * static_cast<std::size_t>(sizes_.features);
}

}  // namespace hexgraft
