#include "session.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <new>
#include <numeric>
#include <utility>

#include "bulk.h"
#include "rows.h"
#include "stats.h"
#include "threads.h"

namespace hexgraft {
namespace {

constexpr std::size_t kHistory = 256;
constexpr std::size_t kMostOperations = 4096;
constexpr std::size_t kMostModels = 16;
constexpr const char* kLastRow = "graphs of this width give the logits of the last row alone";
constexpr std::size_t kAnswerReserve = std::size_t{1} << 20;  // kept free for everything that is not bulk data

Json error_map(const Error& error, int operation) {
  return Json{{"op", operation}, {"code", error.code}, {"message", error.message}, {"hint", error.hint}};
}

Bytes pack(std::uint64_t id, Json results, const Json& error) {
  Json answer{{"id", id}, {"results", std::move(results)}};
  if (!error.is_null()) answer["error"] = error;
  return Json::to_msgpack(answer);
}

// Bits beyond the last column must be clear, so that one meaning has one encoding.
bool clean_padding(const std::vector<std::uint8_t>& bits, std::size_t columns) {
  const std::size_t row_bytes = (columns + 7) / 8;
  if (columns % 8 == 0 || row_bytes == 0) return true;
  for (std::size_t i = row_bytes - 1; i < bits.size(); i += row_bytes) {
    if (bits[i] >> (columns % 8) != 0) return false;
  }
  return true;
}

Visibility read_visibility(Fields& fields, const Sizes& sizes, std::size_t count) {
  Visibility visible;
  visible.prefix = static_cast<std::int32_t>(fields.integer("prefix", 0, sizes.context));
  if (fields.has("visible")) {
    visible.rows = fields.bytes("visible", count * ((count + 7) / 8));
    if (!clean_padding(visible.rows, count)) fields.refuse("`visible` has bits beyond its last row");
  }
  if (fields.has("slots") || fields.has("seen")) {
    const auto most = static_cast<std::size_t>(sizes.context);
    visible.slots = fields.integers("slots", 0, sizes.context - 1, most);
    visible.seen = fields.bytes("seen", count * ((visible.slots.size() + 7) / 8));
    if (!clean_padding(visible.seen, visible.slots.size())) fields.refuse("`seen` has bits beyond its last slot");
    std::vector<std::int32_t> sorted = visible.slots;
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
      fields.refuse("`slots` names a slot twice");
  }
  return visible;
}

// The rows of the last pass that are asked for: those named, or all.
std::vector<std::int32_t> chosen_rows(Fields& fields, const Model& model) {
  if (fields.has("rows")) return fields.integers("rows", 0, model.staged() - 1, kMostOperations);
  std::vector<std::int32_t> all(static_cast<std::size_t>(model.staged()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// What a draft head's rows go on from; other models take nothing of the kind.
States read_states(Fields& fields, const Sizes& sizes, std::size_t count) {
  States states;
  if (!sizes.is_head) return states;
  states.hidden = floats(fields.bytes("hidden", count * static_cast<std::size_t>(sizes.hidden) * sizeof(float)));
  if (sizes.features_in == 0) return states;
  const auto size = static_cast<std::size_t>(sizes.features_in) * sizeof(float);
  states.features = floats(fields.bytes("features", count * size));
  return states;
}

}  // namespace

Error missing_pass() { return Error{"no_pass", "there are no rows: no pass has run", "send a forward first"}; }

Session::Session(Loader loader, std::string folder, Observer observe)
    : loader_(std::move(loader)), folder_(std::move(folder)), observe_(std::move(observe)) {}

void Session::observe(const char* event, Json fields) const {
  if (observe_) observe_(event, std::move(fields));
}

const std::map<std::string, Session::Verb>& Session::verbs() {
  static const std::map<std::string, Verb> kVerbs{
      {"load", &Session::load},   {"unload", &Session::unload}, {"forward", &Session::forward},
      {"rows", &Session::rows},   {"store", &Session::store},   {"move", &Session::move},
      {"reset", &Session::reset}, {"save", &Session::save},     {"restore", &Session::restore},
      {"keep", &Session::keep},   {"recall", &Session::recall}, {"stats", &Session::stats},
      {"bye", &Session::bye}};
  return kVerbs;
}

Bytes Session::answer_error(const Error& error) { return pack(0, Json::array(), error_map(error, -1)); }

Bytes Session::answer(const Bytes& message) {
  if (Status problem = check_message(message.data(), message.size())) return answer_error(*problem);
  const Json request = Json::from_msgpack(message, true, false);
  if (!request.is_object()) return answer_error({"bad_frame", "the frame is not a valid message", ""});
  Fields head(request);
  const auto number = static_cast<std::uint64_t>(head.integer("id", 1, UINT32_MAX));
  const std::uint64_t id = head.problem() ? 0 : number;
  if (!request.contains("ops") || !request["ops"].is_array() || request["ops"].size() > kMostOperations) {
    head.refuse("`ops` must be an array of operations");
  }
  if (request.size() != 2) head.refuse("a request has an `id` and `ops`, nothing else");
  Json results = Json::array();
  answer_bytes_ = 0;
  // `ops` was looked at by hand, so ask for the first problem only.
  if (Status problem = head.problem()) return pack(id, std::move(results), error_map(*problem, -1));
  int index = 0;
  for (const Json& operation : request["ops"]) {
    Answer result = perform(operation);
    if (!result) {
      const Error& error = result.error();
      observe("error", {{"op", operation.is_object() ? operation.value("op", Json()) : Json()},
                        {"code", error.code},
                        {"message", error.message}});
      return pack(id, std::move(results), error_map(error, index));
    }
    results.push_back(std::move(*result));
    ++index;
  }
  return pack(id, std::move(results), nullptr);
}

Session::Answer Session::perform(const Json& operation) {
  if (finished_) return Error{"bad_op", "an operation follows `bye`", ""};
  if (!operation.is_object()) return Error{"bad_op", "an operation is not a map", "see PROTOCOL.md"};
  Fields fields(operation);
  const std::string op = fields.text("op");
  const std::string name = fields.has("model") ? fields.text("model") : "";
  const auto verb = verbs().find(op);
  if (verb == verbs().end()) return Error{"bad_op", "there is no such operation", "see PROTOCOL.md"};
  try {
    return (this->*verb->second)(fields, name);
  } catch (const std::bad_alloc&) {
    return Error{"out_of_memory", "not enough memory for `" + op + "`", "use a smaller context or a smaller model"};
  } catch (const std::exception& problem) {
    return Error{"internal", "`" + op + "` failed: " + problem.what(), "please report this"};
  }
}

Result<Model*> Session::model(const std::string& name) {
  const auto at = models_.find(name);
  if (at == models_.end()) {
    return Error{"not_loaded", "no such model is loaded", "load it first, under the name in `model`"};
  }
  return at->second.get();
}

Status Session::reserve(std::size_t bytes) {
  if (bytes > kFrameLimit - kAnswerReserve - answer_bytes_) {
    return Error{"too_large", "the answer would pass the frame limit", "ask for less at a time"};
  }
  answer_bytes_ += bytes;
  return std::nullopt;
}

Session::Answer Session::load(Fields& fields, const std::string& name) {
  LoadRequest request;
  request.role = fields.text("role");
  request.bundle = fields.text("bundle");
  request.provider = fields.text("provider");
  if (fields.has("widths")) {
    const std::vector<std::int32_t> widths = fields.integers("widths", 1, 4096, 64);
    request.widths.assign(widths.begin(), widths.end());
    if (widths.empty() ||
        std::adjacent_find(widths.begin(), widths.end(), std::greater_equal<>()) != widths.end()) {
      fields.refuse("`widths` must be ascending");
    }
  }
  if (fields.has("whole")) request.whole = fields.boolean("whole");
  if (fields.has("threads")) request.threads = static_cast<int>(fields.integer("threads", 0, 256));
  if (fields.has("soc")) request.soc = fields.text("soc");
  if (fields.has("precision")) request.precision = fields.text("precision");
  if (fields.has("options")) request.options = fields.texts("options");
  if (name.empty() || name.size() > 64) fields.refuse("`model` must be a name of 1 to 64 bytes");
  if (request.role != "target" && request.role != "draft") fields.refuse("`role` must be `target` or `draft`");
  if (models_.size() == kMostModels && models_.count(name) == 0) fields.refuse("too many models are loaded");
  if (Status problem = fields.status()) return *problem;
  drop(name);
  const auto start = std::chrono::steady_clock::now();
  Result<std::unique_ptr<Model>> loaded = loader_(request);
  if (!loaded) return loaded.error();
  const Model& model = **loaded;
  const Sizes& sizes = model.sizes();
  Json answer{{"vocab", sizes.vocab},
              {"layers", sizes.layers},
              {"kv_heads", sizes.kv_heads},
              {"head_dim", sizes.head_dim},
              {"hidden", sizes.hidden},
              {"capacity", sizes.context},
              {"max_width", sizes.max_width},
              {"features", sizes.features},
              {"logits", sizes.logits},
              {"provider", model.graphs().provider()},
              {"memory", model.memory().name()},
              {"threads", model.graphs().threads()},
              {"affinity", current_affinity()}};
  answer["widths"] = sizes.widths.empty() ? Json() : Json(sizes.widths);
  models_[name] = std::move(*loaded);
  Json seen = answer;
  seen.update({{"model", name},
               {"role", request.role},
               {"bundle", request.bundle},
               {"soc", request.soc},
               {"precision", request.precision},
               {"seconds", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()}});
  observe("load", std::move(seen));
  return answer;
}

Session::Answer Session::unload(Fields& fields, const std::string& name) {
  if (Status problem = fields.status()) return *problem;
  if (Result<Model*> found = model(name); !found) return found.error();
  drop(name);
  return Json::object();
}

void Session::drop(const std::string& name) {
  models_.erase(name);
  if (const auto file = files_.find(name); file != files_.end()) {
    file->second.remove();
    files_.erase(file);
  }
}

void Session::rest() {
  for (const auto& entry : models_) entry.second->rest();
}

Session::Answer Session::forward(Fields& fields, const std::string& name) {
  Result<Model*> found = model(name);
  if (!found) return found.error();
  Model& model = **found;
  const Sizes& sizes = model.sizes();
  const auto most = static_cast<std::size_t>(sizes.max_width);
  const std::vector<std::int32_t> tokens = fields.integers("tokens", 0, sizes.vocab - 1, most);
  const std::vector<std::int32_t> positions = fields.integers("positions", 0, sizes.context - 1, most);
  const Visibility visible = read_visibility(fields, sizes, tokens.size());
  const States states = read_states(fields, sizes, tokens.size());
  if (Status problem = fields.status()) return *problem;
  Result<PassTimes> pass = model.forward(tokens, positions, visible, states);
  if (!pass) return pass.error();
  if (history_.size() == kHistory) history_.erase(history_.begin());
  const Json times{{"model", name},
                   {"count", pass->count},
                   {"width", pass->width},
                   {"seconds", pass->runtime},
                   {"total", pass->total}};
  history_.push_back(times);
  if (observe_) {
    Json seen = times;
    seen["prefix"] = visible.prefix;
    observe("pass", std::move(seen));
  }
  return Json{{"count", pass->count}, {"width", pass->width}, {"seconds", pass->runtime}, {"total", pass->total}};
}

Session::Answer Session::rows(Fields& fields, const std::string& name) {
  Result<Model*> found = model(name);
  if (!found) return found.error();
  Model& model = **found;
  if (model.staged() == 0) return missing_pass();
  const std::string want = fields.text("want");
  if (want == "topk") return top_rows(fields, model);
  if (want == "hidden") return hidden_rows(fields, model);
  if (want != "logits") fields.refuse("`want` must be `topk`, `logits` or `hidden`");
  const int row = static_cast<int>(fields.integer("row", 0, model.staged() - 1));
  if (!model.gives_logits(row)) fields.refuse(kLastRow);
  if (Status problem = fields.status()) return *problem;
  const auto count = static_cast<std::size_t>(model.sizes().logits);
  if (Status problem = reserve(count * sizeof(float))) return *problem;
  return Json{{want, binary(model.logits(row), count)}};
}

Session::Answer Session::hidden_rows(Fields& fields, Model& model) {
  const std::vector<std::int32_t> chosen = chosen_rows(fields, model);
  if (Status problem = fields.status()) return *problem;
  const auto size = static_cast<std::size_t>(model.sizes().features);
  if (size == 0) {
    return Error{"no_hidden", "this bundle's graph has no hidden output", "export it with a draft head"};
  }
  if (Status problem = reserve(chosen.size() * size * sizeof(float))) return *problem;
  std::vector<float> states;
  states.reserve(chosen.size() * size);
  for (const int row : chosen) states.insert(states.end(), model.hidden(row), model.hidden(row) + size);
  return Json{{"hidden", binary(states.data(), states.size())}};
}

Session::Answer Session::top_rows(Fields& fields, Model& model) {
  const auto vocab = static_cast<std::size_t>(model.sizes().logits);
  const auto k = static_cast<std::size_t>(fields.integer("k", 1, model.sizes().logits));
  const std::vector<std::int32_t> chosen = chosen_rows(fields, model);
  const bool log_sum = fields.boolean("log_sum");
  for (const int row : chosen) {
    if (!model.gives_logits(row)) fields.refuse(kLastRow);
  }
  if (Status problem = fields.status()) return *problem;
  if (Status problem = reserve(chosen.size() * (8 * k + 8))) return *problem;
  std::vector<std::int32_t> ids(chosen.size() * k);
  std::vector<float> logits(ids.size());
  std::vector<double> sums;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const float* row = model.logits(chosen[i]);
    if (!top_tokens(row, vocab, k, ids.data() + i * k, logits.data() + i * k)) {
      return Error{"not_finite", "the logits are not finite", "the graph overflows at this precision"};
    }
    if (log_sum) sums.push_back(log_sum_exp(row, vocab));
  }
  Json answer{{"ids", binary(ids.data(), ids.size())}, {"logits", binary(logits.data(), logits.size())}};
  if (log_sum) answer["log_sum"] = binary(sums.data(), sums.size());
  return answer;
}

Session::Answer Session::stats(Fields& fields, const std::string&) {
  if (Status problem = fields.status()) return *problem;
  Json threads = Json::object();
  for (const auto& [thread, cores] : thread_affinities()) threads[std::to_string(thread)] = cores;
  Json models = Json::object();
  for (const auto& [name, model] : models_) {
    models[name] = {{"capacity", model->capacity()},
                    {"memory", model->memory().name()},
                    {"provider", model->graphs().provider()},
                    {"threads", model->graphs().threads()},
                    {"resting", model->graphs().resting()}};
  }
  return Json{{"passes", history_},  {"models", models},           {"memory", memory_stats()},
              {"affinity", threads}, {"thermal", thermal_stats()}, {"frequency", frequency_stats()}};
}

Session::Answer Session::bye(Fields& fields, const std::string&) {
  if (Status problem = fields.status()) return *problem;
  while (!models_.empty()) drop(models_.begin()->first);
  finished_ = true;
  return Json::object();
}

}  // namespace hexgraft
