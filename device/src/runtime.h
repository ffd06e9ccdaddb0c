// ONNX Runtime, loaded by path: the runner links against none, so one binary serves many releases.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "graphs.h"
#include "model.h"
#include "result.h"
#include "session.h"

namespace hexgraft {

struct RuntimePaths {
  std::string ort;      // libonnxruntime.so*, a path or a name for the loader to find
  std::string qnn;      // the QNN provider plugin, empty for none
  std::string backend;  // libQnnHtp.so, empty: beside the plugin
};

class Runtime {
 public:
  // `heard` is told every line the runtime logs, which goes to stderr too.
  using Heard = std::function<void(const std::string& line)>;
  static Result<std::shared_ptr<Runtime>> open(const RuntimePaths& paths, Heard heard = {});

  const std::string& version() const { return version_; }
  int api() const { return api_; }
  // "cpu", and "htp" where a plugin was named that exists.
  std::vector<std::string> providers() const;
  // Load one model of a bundle: read its manifest, its graphs, and make its cache.
  Result<std::unique_ptr<Model>> load(const LoadRequest& request);

 private:
  Runtime() = default;
  struct Environment;  // the runtime's own, out of sight of everything that does not include its headers
  friend class GraphLoader;

  RuntimePaths paths_;
  std::string version_;
  int api_ = 0;
  std::shared_ptr<Environment> environment_;
};

}  // namespace hexgraft
