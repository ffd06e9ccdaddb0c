// Inputs of a pass: pads, the tree mask from compact visibility, RoPE tables.
#include <cmath>

#include "check.h"
#include "pass.h"

using namespace hexgraft;

namespace {

Sizes sizes() {
  Sizes s;
  s.layers = 1;
  s.hidden = 4;
  s.kv_heads = 1;
  s.head_dim = 8;
  s.vocab = 11;
  s.context = 100;
  s.max_width = 16;
  s.mask_value = -50;
  for (int i = 0; i < 4; ++i) s.rope.frequencies.push_back(std::pow(10000.0, -2.0 * i / 8));
  s.rope.scale = 1.25;
  return s;
}

const std::vector<std::int32_t> kSlots(100);  // where slots stand in the text: of no matter without a window

bool sees(Pass& pass, int width, int capacity, int row, int column) {
  const float value = pass.mask.floats()[row * (capacity + width) + column];
  CHECK(value == 0 || value == -50);
  return value == 0;
}

//      A B C D     root A, children B C of A, child D of B, in a pass of width 6: rows 4 and 5 are pads
void tree_with_pads() {
  Pass pass(sizes(), plain_memory());
  pass.resize(6, 10);
  Visibility visible;
  visible.prefix = 3;
  visible.rows = {0b0001, 0b0011, 0b0101, 0b1011};
  pass.fill(6, 10, {5, 6, 7, 8}, {3, 4, 4, 5, 3, 3}, kSlots, visible);
  const char* rows[6] = {"x.....", "xx....", "x.x...", "xx.x..", "....x.", ".....x"};
  for (int row = 0; row < 6; ++row) {
    for (int slot = 0; slot < 10; ++slot) CHECK(sees(pass, 6, 10, row, slot) == (row < 4 && slot < 3));
    for (int other = 0; other < 6; ++other) CHECK(sees(pass, 6, 10, row, 10 + other) == (rows[row][other] == 'x'));
  }
  const auto* ids = static_cast<const std::int32_t*>(pass.ids.data());
  CHECK(ids[0] == 5 && ids[3] == 8 && ids[4] == 0 && ids[5] == 0);
  for (int i = 0; i < 4; ++i) CHECK(pass.cos.floats()[5 * 4 + i] == pass.cos.floats()[i]);  // pads: first position
}

void causal_and_scratch_slots() {
  Pass pass(sizes(), plain_memory());
  pass.resize(9, 20);
  Visibility visible;
  visible.prefix = 4;
  // Slot 2 is inside the prefix: what `seen` says of it counts.
  visible.slots = {15, 2, 16, 17, 18, 19, 10, 11, 12};
  visible.seen.assign(9 * 2, 0);
  visible.seen[0] = 0b00000011;   // row 0 sees slots 15 and 2
  visible.seen[2 * 8 + 1] = 0b1;  // row 8 sees slot 12
  pass.fill(9, 20, std::vector<std::int32_t>(9, 1), std::vector<std::int32_t>(9, 4), kSlots, visible);
  for (int row = 0; row < 9; ++row) {
    for (int other = 0; other < 9; ++other) CHECK(sees(pass, 9, 20, row, 20 + other) == (other <= row));
    CHECK(sees(pass, 9, 20, row, 0) && sees(pass, 9, 20, row, 3) && !sees(pass, 9, 20, row, 4));
    CHECK(sees(pass, 9, 20, row, 2) == (row == 0));
    CHECK(sees(pass, 9, 20, row, 15) == (row == 0));
    CHECK(sees(pass, 9, 20, row, 12) == (row == 8));
  }
}

// A narrower pass after a wider one leaves nothing of it behind.
void narrow_after_wide() {
  Pass pass(sizes(), plain_memory());
  pass.resize(16, 30);
  Visibility visible;
  visible.prefix = 30;
  pass.fill(16, 30, std::vector<std::int32_t>(16, 3), std::vector<std::int32_t>(16, 9), kSlots, visible);
  const auto epoch = pass.epoch();
  pass.resize(2, 30);
  CHECK(pass.epoch() == epoch);
  visible.prefix = 1;
  pass.fill(2, 30, {4, 5}, {7, 8}, kSlots, visible);
  int zeros = 0;
  for (int i = 0; i < 2 * 32; ++i) zeros += pass.mask.floats()[i] == 0 ? 1 : 0;
  CHECK(zeros == 1 + 1 + 1 + 2);
}

// Rows that a graph writes behind the cache's slots need no buffers here.
void no_buffers_for_joined_rows() {
  Sizes s = sizes();
  for (const bool joined : {false, true}) {
    s.joined = joined;
    Pass pass(s, plain_memory());
    pass.resize(6, 10);
    CHECK(pass.keys.empty() == joined && pass.values.empty() == joined && pass.mask.count() == 6 * 16);
  }
}

void rope_angles() {
  Pass pass(sizes(), plain_memory());
  pass.resize(1, 1);
  Visibility visible;
  pass.fill(1, 1, {0}, {97}, kSlots, visible);
  for (int i = 0; i < 4; ++i) {
    const double angle = 97 * std::pow(10000.0, -2.0 * i / 8);
    CHECK(pass.cos.floats()[i] == static_cast<float>(std::cos(angle) * 1.25));
    CHECK(pass.sin.floats()[i] == static_cast<float>(std::sin(angle) * 1.25));
  }
}

// Slots in no order of position, one of them far: near rows see it no more where there is a window.
void windows() {
  Sizes s = sizes();
  s.window = 3;
  s.local_rope.frequencies = {2, 0.2, 0.02, 0.002};
  Pass pass(s, plain_memory());
  pass.resize(3, 4);
  Visibility visible;
  visible.prefix = 2;
  visible.slots = {3};
  visible.seen = {1, 1};
  pass.fill(3, 4, {5, 6}, {4, 5, 4}, {1, 2, 9, 3}, visible);
  const char* rows[3] = {".x.xx..", "...xxx.", "......x"};
  for (int row = 0; row < 3; ++row) {
    for (int column = 0; column < 7; ++column) {
      const float value = pass.mask_local.floats()[row * 7 + column];
      CHECK(value == (rows[row][column] == 'x' ? 0 : -50));
    }
  }
  CHECK(sees(pass, 3, 4, 1, 0) && sees(pass, 3, 4, 1, 1));  // elsewhere all of the prefix is seen
  for (int i = 0; i < 4; ++i) {
    const double angle = 5 * s.local_rope.frequencies[static_cast<std::size_t>(i)];
    CHECK(pass.cos_local.floats()[4 + i] == static_cast<float>(std::cos(angle)));
    CHECK(pass.sin_local.floats()[4 + i] == static_cast<float>(std::sin(angle)));
  }
}

// Graphs that give the logits of their last row alone: rows at the end, pads before them; and a quantised border.
void rows_at_the_end() {
  Sizes s = sizes();
  s.logits = 11;
  const Code mask{Type::kUint8, 0.25F, 200}, turn{Type::kUint16, 0.0001F, 32768};
  s.borders[6] = Border{mask, turn, turn, {Type::kUint8, 2.0F, 5}, true};
  Pass pass(s, plain_memory());
  pass.resize(6, 10);
  Visibility visible;
  visible.prefix = 3;
  visible.rows = {0b01, 0b11};
  visible.slots = {7};
  visible.seen = {0b1, 0b0};
  pass.fill(6, 10, {5, 6}, {3, 3, 3, 3, 8, 9}, kSlots, visible);
  const auto* ids = static_cast<const std::int32_t*>(pass.ids.data());
  CHECK(ids[0] == 0 && ids[3] == 0 && ids[4] == 5 && ids[5] == 6);
  const char* rows[6] = {"x.....", ".x....", "..x...", "...x..", "....x.", "....xx"};
  const auto* stored = static_cast<const std::uint8_t*>(pass.mask_data(6));
  for (int row = 0; row < 6; ++row) {
    for (int slot = 0; slot < 10; ++slot) {
      CHECK(sees(pass, 6, 10, row, slot) == (row >= 4 && (slot < 3 || (slot == 7 && row == 4))));
    }
    for (int other = 0; other < 6; ++other) CHECK(sees(pass, 6, 10, row, 10 + other) == (rows[row][other] == 'x'));
    for (int column = 0; column < 16; ++column) {
      CHECK(stored[row * 16 + column] == (sees(pass, 6, 10, row, column) ? 200 : 0));
    }
  }
  const auto* cos = static_cast<const std::uint16_t*>(pass.cos_data(6));
  CHECK(cos[0] == 32768 + std::nearbyint(pass.cos.floats()[0] / 0.0001F));
  auto* logits = static_cast<std::uint8_t*>(pass.logits_data(6));
  for (int i = 0; i < 11; ++i) logits[i] = static_cast<std::uint8_t>(i);
  CHECK(pass.logits_row(6, 1)[0] == -10 && pass.logits_row(6, 1)[10] == 10);
}

}  // namespace

int main() {
  rows_at_the_end();
  tree_with_pads();
  causal_and_scratch_slots();
  narrow_after_wide();
  no_buffers_for_joined_rows();
  rope_angles();
  windows();
  return REPORT();
}
