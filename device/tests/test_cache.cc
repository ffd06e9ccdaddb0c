// The cache against a plain map of (layer, head, place, slot) to numbers, over random stores, moves and growth.
#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "cache.h"
#include "check.h"

using namespace hexgraft;

namespace {

constexpr int kWidth = 5;

Sizes sizes(bool joined = false) {
  Sizes s;
  s.layers = 2;
  s.kv_heads = 3;
  s.head_dim = 4;
  s.context = 700;
  s.max_width = kWidth;
  s.joined = joined;
  return s;
}

// Where a number of a slot is in the cache; in the joined layout rows of a pass are the slots from the capacity on.
float& key(Cache& cache, const Sizes& s, int layer, int h, int d, int slot) {
  const int extent = cache.extent(0);
  return cache.keys(layer)[s.joined ? (h * extent + slot) * s.head_dim + d : (h * s.head_dim + d) * extent + slot];
}
float& value(Cache& cache, const Sizes& s, int layer, int h, int d, int slot) {
  return cache.values(layer)[(h * cache.extent(0) + slot) * s.head_dim + d];
}

template <class Do>
void for_each_place(const Sizes& s, const Do& act) {
  for (int layer = 0; layer < s.layers; ++layer) {
    for (int h = 0; h < s.kv_heads; ++h) {
      for (int d = 0; d < s.head_dim; ++d) act(layer, h, d);
    }
  }
}

// What the cache must hold, written as slowly and plainly as possible.
struct Plain {
  std::map<std::tuple<int, int, int, int>, float> keys, values;  // layer, head, place in head, slot
};

void check_equal(Cache& cache, const Plain& plain, const Sizes& s) {
  for_each_place(s, [&](int layer, int h, int d) {
    for (int slot = 0; slot < cache.capacity(); ++slot) {
      const auto at = std::make_tuple(layer, h, d, slot);
      const auto k = plain.keys.find(at), v = plain.values.find(at);
      CHECK(key(cache, s, layer, h, d, slot) == (k == plain.keys.end() ? 0 : k->second));
      CHECK(value(cache, s, layer, h, d, slot) == (v == plain.values.end() ? 0 : v->second));
    }
  });
}

// The rows of a pass, where a graph leaves them: beside the cache, or in its own buffers.
struct Rows {
  Rows(const Sizes& s, Cache& into) : sizes(s), cache(into) {
    for (int i = 0; i < (s.joined ? 0 : 2 * s.layers); ++i) {
      const int count = s.kv_heads * s.head_dim * kWidth;
      (i < s.layers ? keys : values).emplace_back(plain_memory(), static_cast<std::size_t>(count));
    }
  }
  void write(int layer, int h, int d, int row, float k, float v) {
    if (sizes.joined) {
      key(cache, sizes, layer, h, d, cache.capacity() + row) = k;
      value(cache, sizes, layer, h, d, cache.capacity() + row) = v;
      return;
    }
    keys[static_cast<std::size_t>(layer)].floats()[(h * sizes.head_dim + d) * kWidth + row] = k;
    values[static_cast<std::size_t>(layer)].floats()[(h * kWidth + row) * sizes.head_dim + d] = v;
  }
  void store(const std::vector<std::int32_t>& rows, const std::vector<std::int32_t>& slots) {
    cache.store(keys, values, kWidth, rows, slots);
  }

  Sizes sizes;
  Cache& cache;
  std::vector<Buffer> keys, values;
};

void random_stores_and_moves(bool joined) {
  const Sizes s = sizes(joined);
  Cache cache(s, plain_memory(), 64);
  Rows staged(s, cache);
  Plain plain;
  std::mt19937 random(7);
  float next = 1;
  for (int round = 0; round < 40; ++round) {
    // Capacities of all sizes on the way up: rows must outlive a growth that comes after their pass.
    const int base = static_cast<int>(random() % static_cast<unsigned>(40 + 16 * round));
    const std::vector<std::int32_t> rows{4, 0, 2}, slots{base, base + 3, base + 1};
    for_each_place(s, [&](int layer, int h, int d) {
      for (int row = 0; row < kWidth; ++row, ++next) {
        staged.write(layer, h, d, row, next, -next);
        const auto to = std::find(rows.begin(), rows.end(), row) - rows.begin();
        if (to == 3) continue;
        plain.keys[{layer, h, d, slots[static_cast<std::size_t>(to)]}] = next;
        plain.values[{layer, h, d, slots[static_cast<std::size_t>(to)]}] = -next;
      }
    });
    CHECK(!cache.grow(base + 8));
    staged.store(rows, slots);
    // Overlapping on purpose: targets are other pairs' sources.
    const std::vector<std::int32_t> source{base, base + 1, base + 3, base + 5};
    const std::vector<std::int32_t> target{base, base + 1, base + 2, base + 3};
    const Plain before = plain;
    cache.move(source, target);
    for (auto [from, to] : {std::pair(&before.keys, &plain.keys), std::pair(&before.values, &plain.values)}) {
      for_each_place(s, [from = from, to = to, &source, &target](int layer, int h, int d) {
        for (std::size_t i = 0; i < source.size(); ++i) {
          const auto at = from->find({layer, h, d, source[i]});
          (*to)[{layer, h, d, target[i]}] = at == from->end() ? 0 : at->second;
        }
      });
    }
  }
  CHECK(cache.capacity() > 512);
  check_equal(cache, plain, s);
}

void growth_in_steps_and_back() {
  const Sizes s = sizes();
  Cache cache(s, plain_memory(), 256);
  const auto first = cache.epoch();
  CHECK(!cache.grow(256) && cache.capacity() == 256 && cache.epoch() == first);
  cache.keys(1)[5 * 256 + 255] = 3;
  CHECK(!cache.grow(257) && cache.capacity() == 320 && cache.epoch() != first);
  CHECK(cache.keys(1)[5 * 320 + 255] == 3 && cache.keys(1)[5 * 320 + 256] == 0);
  CHECK(!cache.grow(513) && cache.capacity() == 700);  // the context, not a whole step
  const Status beyond = cache.grow(701);
  CHECK(beyond && beyond->code == "out_of_range" && cache.capacity() == 700);
  cache.reset(256);
  CHECK(cache.capacity() == 256 && cache.keys(1)[5 * 256 + 255] == 0);
}

void growth_through_capacities() {
  Sizes s = sizes();
  s.capacities = {40, 100, 700};
  Cache cache(s, plain_memory(), 40);
  cache.keys(1)[5 * 40 + 39] = 3;
  CHECK(!cache.grow(40) && cache.capacity() == 40);
  CHECK(!cache.grow(41) && cache.capacity() == 100 && cache.keys(1)[5 * 100 + 39] == 3);
  CHECK(!cache.grow(101) && cache.capacity() == 700 && cache.keys(1)[5 * 700 + 39] == 3);
  const Status beyond = cache.grow(701);
  CHECK(beyond && beyond->code == "out_of_range");
  cache.reset(40);
  CHECK(cache.capacity() == 40);
}

void save_and_restore() {
  const Sizes s = sizes();
  Cache cache(s, plain_memory(), 256), other(s, plain_memory(), 512);
  for (int i = 0; i < 12 * 256; ++i)
    cache.keys(0)[i] = static_cast<float>(i), cache.values(0)[i] = static_cast<float>(-i);
  std::vector<float> keys(12 * 9), values(12 * 9);
  cache.save(0, 3, 9, keys.data(), values.data());
  CHECK(keys[9] == 256 + 3 && values[0] == -3 * 4);
  other.restore(0, 3, 9, keys.data(), values.data());
  CHECK(other.keys(0)[1 * 512 + 3] == 256 + 3 && other.keys(0)[1 * 512 + 2] == 0 && other.keys(0)[512 + 12] == 0);
  CHECK(other.values(0)[(1 * 512 + 4) * 4 + 2] == -((1 * 256 + 4) * 4 + 2));
}

// The joined layout lies otherwise, but what is saved of it is the same.
void saved_slots_fit_every_layout() {
  const Sizes s = sizes(), lying = sizes(true);
  Cache cache(s, plain_memory(), 64), other(lying, plain_memory(), 128);
  for (int i = 0; i < 12 * 64; ++i)
    cache.keys(1)[i] = static_cast<float>(i), cache.values(1)[i] = static_cast<float>(-i);
  std::vector<float> keys(12 * 9), values(12 * 9), same_keys(12 * 9), same_values(12 * 9);
  cache.save(1, 3, 9, keys.data(), values.data());
  other.restore(1, 50, 9, keys.data(), values.data());
  for_each_place(s, [&](int layer, int h, int d) {
    for (int slot = 49; slot < 60; ++slot) {
      const bool there = layer == 1 && slot >= 50 && slot < 59;
      CHECK(key(other, lying, layer, h, d, slot) == (there ? key(cache, s, 1, h, d, slot - 47) : 0));
      CHECK(value(other, lying, layer, h, d, slot) == (there ? value(cache, s, 1, h, d, slot - 47) : 0));
    }
  });
  other.save(1, 50, 9, same_keys.data(), same_values.data());
  CHECK(same_keys == keys && same_values == values);
}

// A reset at the same capacity leaves zeros: a masked column still takes part in a product.
void reset_clears_what_was_written(bool joined) {
  const Sizes s = sizes(joined);
  Cache cache(s, plain_memory(), 64);
  Rows staged(s, cache);
  for_each_place(s, [&](int layer, int h, int d) {
    for (int row = 0; row < kWidth; ++row) staged.write(layer, h, d, row, NAN, NAN);
  });
  staged.store({0}, {9});
  const std::vector<float> rows(12 * 2, NAN);
  cache.restore(1, 20, 2, rows.data(), rows.data());
  cache.move({9, 21}, {3, 5});
  const auto before = cache.epoch();
  cache.reset(64);
  CHECK(cache.capacity() == 64 && cache.epoch() == before);
  for (int i = 0; i < 12 * cache.extent(0); ++i) CHECK(cache.keys(1)[i] == 0 && cache.values(1)[i] == 0);
  check_equal(cache, Plain(), s);
}

// Rounding, clipping and back, against numbers worked out by hand.
void codes() {
  const Code code{Type::kUint8, 0.5F, 10};
  const float reals[] = {0, 0.24F, 0.25F, 0.75F, -5, -100, 200};
  std::uint8_t stored[7];
  to_stored(reals, 7, code, stored);
  const std::uint8_t wanted[] = {10, 10, 10, 12, 0, 0, 255};  // ties to even
  for (int i = 0; i < 7; ++i) CHECK(stored[i] == wanted[i]);
  float back[7];
  to_real(stored, 7, code, back);
  CHECK(back[0] == 0 && back[3] == 1 && back[4] == -5 && back[6] == 122.5F);
  const Code wide{Type::kInt16, 0.001F, -7};
  std::int16_t numbers[2];
  fill_zero(numbers, 2, wide);
  CHECK(numbers[0] == -7 && numbers[1] == -7);
  to_real(numbers, 2, wide, back);
  CHECK(back[0] == 0);
}

// The vendor's layout: buffers of each width, with one set of slots.
void widths_share_slots() {
  Sizes s = sizes();
  s.columns = 40;
  s.context = 24;
  s.widths = {1, 8, 16};
  s.kv_codes.assign(2, {{Type::kUint8, 0.5F, 100}, {Type::kUint8, 0.25F, 7}});
  Cache cache(s, plain_memory(), 24);
  CHECK(cache.past(1) == 39 && cache.past(16) == 24);
  const auto key = [&](int width, int row, int slot) {
    return static_cast<std::uint8_t*>(cache.keys(1, width))[row * cache.past(width) + slot];
  };
  const auto value = [&](int width, int head, int slot, int d) {
    return static_cast<std::uint8_t*>(cache.values(1, width))[(head * cache.past(width) + slot) * s.head_dim + d];
  };
  CHECK(key(1, 11, 38) == 100 && value(1, 2, 38, 3) == 7);
  std::vector<Buffer> keys, values;
  for (int i = 0; i < s.layers; ++i) {
    for (auto* buffers : {&keys, &values}) {
      buffers->emplace_back(plain_memory(), 12 * 8 / 4);
      auto* bytes = static_cast<std::uint8_t*>(buffers->back().data());
      for (int j = 0; j < 12 * 8; ++j) bytes[j] = static_cast<std::uint8_t>(j + i);
    }
  }
  const auto before = cache.epoch();
  cache.store(keys, values, 8, {5, 7}, {20, 3});
  cache.use(16);
  CHECK(cache.epoch() != before);
  cache.store(keys, values, 8, {1}, {21});
  for (const int width : {1, 16}) {
    CHECK(key(width, 4, 20) == 4 * 8 + 5 + 1 && key(width, 4, 3) == 4 * 8 + 7 + 1 &&
          key(width, 4, 21) == 4 * 8 + 1 + 1);
    CHECK(value(width, 2, 3, 1) == (2 * 8 + 7) * 4 + 1 + 1 && key(width, 4, 0) == 100);
  }
  cache.move({20, 21}, {4, 5});
  CHECK(key(1, 4, 4) == key(16, 4, 20) && value(16, 2, 5, 1) == value(1, 2, 21, 1));
  std::vector<float> saved(12 * 6), rows(12 * 6), again(12 * 6);
  cache.save(1, 0, 6, saved.data(), rows.data());
  CHECK(saved[4 * 6 + 3] == (4 * 8 + 8 - 100) * 0.5F && saved[0] == 0);
  cache.restore(0, 0, 6, saved.data(), rows.data());
  cache.save(0, 0, 6, again.data(), rows.data());
  CHECK(saved == again);
  cache.reset(24);
  for (const int width : {1, 16}) {
    CHECK(key(width, 4, 20) == 100 && key(width, 4, 5) == 100 && value(width, 2, 3, 1) == 7);
  }
  const Status beyond = cache.grow(25);
  CHECK(beyond && beyond->code == "out_of_range");
}

}  // namespace

int main() {
  codes();
  widths_share_slots();
  for (const bool joined : {false, true}) {
    random_stores_and_moves(joined);
    reset_clears_what_was_written(joined);
  }
  growth_in_steps_and_back();
  growth_through_capacities();
  save_and_restore();
  saved_slots_fit_every_layout();
  return REPORT();
}
