// What the phone's own FastRPC library tells of its NPU, asked without a model.
#pragma once

#include <string>

namespace hexgraft {

// A JSON object: `unsigned_pd` (whether the compute DSP runs unsigned code, as a shell user's is) and `arch` (the
// Hexagon version), each null where it cannot be had; `error` says why then. `library` is a path or a name for the
// loader to find.
std::string probe_npu(const std::string& library);

}  // namespace hexgraft
