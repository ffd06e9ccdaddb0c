// Reads what the runner needs of a bundle's manifest, and refuses what does not fit.
#pragma once

#include <string>
#include <vector>

#include "result.h"
#include "sizes.h"

namespace hexgraft {

struct GraphFile {
  std::string path;
  int width = 0;     // 0 while symbolic
  int capacity = 0;  // 0 while symbolic
};

struct ModelFiles {
  Sizes sizes;  // widths as the bundle names them; the loader decides which of them hold
  std::vector<GraphFile> graphs;
};

// The "target" or "draft" model of the bundle folder at `path`, with its graphs for `provider`.
Result<ModelFiles> read_model(const std::string& path, const std::string& role, const std::string& provider);

}  // namespace hexgraft
