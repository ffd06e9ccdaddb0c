// The numbers of one model that every part of the runner needs.
#pragma once

#include <vector>

namespace hexgraft {

// Rotary position embedding: angles are position times frequency.
struct Rope {
  std::vector<double> frequencies;  // head_dim/2, radians a position, any scaling in them
  double scale = 1;                 // multiplies cos and sin
};

struct Sizes {
  int layers = 0;
  int hidden = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int vocab = 0;
  int context = 0;  // cache slots C at most; positions are below it
  int max_width = 0;
  std::vector<int> widths;  // ascending; empty where any width up to max_width runs
  // Sizes the cache may have, ascending, the last one `context`; empty where it grows in steps of its own.
  std::vector<int> capacities;
  float mask_value = 0;     // added where a column is not visible
  Rope rope;
  Rope local_rope;  // of layers with a window, where it differs; empty otherwise
  int window = 0;   // layers with one see positions less than this back; 0: there are none
  int logits = 0;      // numbers in a row of logits: vocab, or fewer where a draft head proposes fewer tokens
  int features = 0;    // numbers in a row of the output `hidden`; 0: there is none
  bool is_head = false;  // a draft head: it also takes `hidden_in` [T][hidden] and `features` [T][features_in]
  int features_in = 0;   // 0: there is no such input
};

}  // namespace hexgraft
