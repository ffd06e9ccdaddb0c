// The numbers of one model that every part of the runner needs.
#pragma once

#include <vector>

namespace hexgraft {

struct Sizes {
  int layers = 0;
  int hidden = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int vocab = 0;
  int context = 0;  // cache slots C at most; positions are below it
  int max_width = 0;
  std::vector<int> widths;          // ascending; empty where any width up to max_width runs
  float mask_value = 0;             // added where a column is not visible
  std::vector<double> frequencies;  // RoPE: radians a position for each pair of head dimensions
  double rope_scale = 1;            // multiplies cos and sin
  bool has_hidden = false;
};

}  // namespace hexgraft
