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
  // Of a graph compiled for the NPU. Graphs of one width with several parts run one after the other.
  std::string precision, soc;
  int soc_model = 0, vtcm_mb = 0;  // 0: not said
  int part = 0, parts = 1;
  bool shared = false;    // its context binary serves several graphs
  double mask_value = 0;  // takes the place of the model's unless 0
  bool vendor = false;    // in the vendor's layout: CL columns whatever the width
  Border border;          // its quantised inputs and outputs, cache apart
};

struct ModelFiles {
  Sizes sizes;  // widths as the bundle names them; the loader decides which of them hold
  std::vector<GraphFile> graphs;
};

// Which of several builds for the NPU; empty: any.
struct BuildName {
  std::string soc, precision;
};

// The "target" or "draft" model of the bundle folder at `path`, with its graphs for `provider`. Graphs of builds
// that are not meant need not be there.
Result<ModelFiles> read_model(const std::string& path, const std::string& role, const std::string& provider,
                              const BuildName& build = {});

}  // namespace hexgraft
