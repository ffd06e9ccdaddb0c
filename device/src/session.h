// The runner's end of the protocol: frames in, operations carried out in order, frames out.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cache_file.h"
#include "fields.h"
#include "frames.h"
#include "model.h"
#include "result.h"

namespace hexgraft {

constexpr int kProtocol = 2;

struct LoadRequest {
  std::string bundle, role, provider;
  std::string soc, precision;  // which of several builds for the NPU; empty: the first
  std::vector<int> widths;     // empty: any
  bool whole = false;          // the whole context at once, instead of a cache that grows
  int threads = 0;             // 0: one per big core
  std::map<std::string, std::string> options;
};

// Told of loads, passes and errors as they happen.
using Observer = std::function<void(const char* event, Json fields)>;
using Loader = std::function<Result<std::unique_ptr<Model>>(const LoadRequest&)>;

// What asking for rows before a pass comes to.
Error missing_pass();

class Session {
 public:
  // Cache files lie in `folder`; without one there are none.
  explicit Session(Loader loader, std::string folder = "", Observer observe = {});

  // The answer to one message, as bytes of a message. Never fails: what is wrong is in the answer.
  Bytes answer(const Bytes& message);
  // The answer to a frame that could not be read.
  static Bytes answer_error(const Error& error);
  // Nobody has asked for anything for a while: let go of what only hurry needs. The next pass takes it again.
  void rest();
  // True once `bye` was said.
  bool finished() const { return finished_; }

 private:
  using Answer = Result<Json>;
  using Verb = Answer (Session::*)(Fields&, const std::string& name);
  static const std::map<std::string, Verb>& verbs();

  Answer perform(const Json& operation);
  Result<Model*> model(const std::string& name);

  Answer load(Fields& fields, const std::string& name);
  Answer unload(Fields& fields, const std::string& name);
  Answer forward(Fields& fields, const std::string& name);
  Answer rows(Fields& fields, const std::string& name);
  Answer top_rows(Fields& fields, Model& model);
  Answer hidden_rows(Fields& fields, Model& model);
  Answer store(Fields& fields, const std::string& name);
  Answer move(Fields& fields, const std::string& name);
  Answer reset(Fields& fields, const std::string& name);
  Answer save(Fields& fields, const std::string& name);
  Answer restore(Fields& fields, const std::string& name);
  Answer keep(Fields& fields, const std::string& name);
  Answer recall(Fields& fields, const std::string& name);
  Answer stats(Fields& fields, const std::string& name);
  Answer bye(Fields& fields, const std::string& name);

  // Reserve bytes of the answer being made; an answer above the frame limit is refused before it is built.
  Status reserve(std::size_t bytes);

  Result<CacheFile*> cache_file(Fields& fields, const std::string& name);
  // Forget a model, and the cache file it kept: its run ended in order.
  void drop(const std::string& name);
  void observe(const char* event, Json fields) const;

  Loader loader_;
  std::string folder_;
  Observer observe_;
  std::map<std::string, CacheFile> files_;                // by the model's name
  std::map<std::string, std::unique_ptr<Model>> models_;  // by the name the host gave
  std::vector<Json> history_;                             // times of recent passes, oldest first
  std::size_t answer_bytes_ = 0;
  bool finished_ = false;
};

}  // namespace hexgraft
