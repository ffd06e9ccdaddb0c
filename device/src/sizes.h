// The numbers of one model that every part of the runner needs.
#pragma once

#include <map>
#include <vector>

#include "codes.h"

namespace hexgraft {

// Rotary position embedding: angles are position times frequency.
struct Rope {
  std::vector<double> frequencies;  // head_dim/2, radians a position, any scaling in them
  double scale = 1;                 // multiplies cos and sin
};

// How one layer's keys and values are stored.
struct KvCode {
  Code key, value;
};

// What the graphs of one width take and give that is not float32, and whether they give the logits of their last
// row alone: the rows of a pass stand at its end then, pads before them.
struct Border {
  Code mask, cos, sin, logits;
  bool last_logits = false;
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
  float mask_value = 0;  // added where a column is not visible
  Rope rope;
  Rope local_rope;       // of layers with a window, where it differs; empty otherwise
  int window = 0;        // layers with one see positions less than this back; 0: there are none
  int logits = 0;        // numbers in a row of logits: vocab, or fewer where a draft head proposes fewer tokens
  int features = 0;      // numbers in a row of the output `hidden`; 0: there is none
  bool is_head = false;  // a draft head: it also takes `hidden_in` [T][hidden] and `features` [T][features_in]
  int features_in = 0;   // 0: there is no such input
  // The vendor's layout: masks have so many columns in every width, the last of them the rows of the pass. 0: the
  // cache has C columns whatever the width.
  int columns = 0;
  // The joined layout: keys by slot as values are, and behind the C slots of the same buffers `max_width` more,
  // into which a graph writes the rows of a pass.
  bool joined = false;
  std::vector<KvCode> kv_codes;   // a layer each; empty where keys and values are float32
  std::map<int, Border> borders;  // by width; none where all is float32

  Border border(int width) const {
    const auto found = borders.find(width);
    return found != borders.end() ? found->second : Border{};
  }
  // Where the rows of a pass of `count` begin in a graph of `width` rows.
  int first_row(int width, int count) const { return border(width).last_logits ? width - count : 0; }
};

}  // namespace hexgraft
