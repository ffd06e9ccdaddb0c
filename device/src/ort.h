// The one way this runner includes ONNX Runtime: no symbol of it is linked, the table of functions is set by hand.
#pragma once

#include <string>

#define ORT_API_MANUAL_INIT
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#endif
#include <onnxruntime_cxx_api.h>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
#undef ORT_API_MANUAL_INIT

#include "result.h"

namespace hexgraft {

// An error of the runtime in one line.
inline Error runtime_error(const std::string& code, const std::string& doing, const std::exception& problem,
                           const std::string& hint) {
  std::string reason = problem.what();
  reason = reason.substr(0, reason.find('\n'));
  return Error{code, doing + ": " + reason, hint};
}

}  // namespace hexgraft
