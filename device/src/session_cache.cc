// The verbs that read and write a model's cache.
#include <utility>

#include "bulk.h"
#include "session.h"

namespace hexgraft {
namespace {

constexpr std::size_t kKeyBytes = 64;

bool is_file_name(const std::string& name) {
  return !name.empty() && name.size() <= 64 &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string::npos;
}

}  // namespace

Session::Answer Session::store(Fields& fields, const std::string& name) {
  Result<Model*> found = model(name);
  if (!found) return found.error();
  Model& model = **found;
  const auto most = static_cast<std::size_t>(model.sizes().max_width);
  const std::vector<std::int32_t> rows = fields.integers("rows", 0, model.sizes().max_width - 1, most);
  const std::vector<std::int32_t> slots = fields.integers("slots", 0, model.sizes().context - 1, most);
  if (Status problem = fields.status()) return *problem;
  if (model.staged() == 0 && !rows.empty()) return missing_pass();
  if (Status problem = model.store(rows, slots)) return *problem;
  return Json::object();
}

Session::Answer Session::move(Fields& fields, const std::string& name) {
  Result<Model*> found = model(name);
  if (!found) return found.error();
  Model& model = **found;
  const auto most = static_cast<std::size_t>(model.sizes().context);
  const std::vector<std::int32_t> source = fields.integers("source", 0, model.sizes().context - 1, most);
  const std::vector<std::int32_t> target = fields.integers("target", 0, model.sizes().context - 1, most);
  if (Status problem = fields.status()) return *problem;
  if (Status problem = model.move(source, target)) return *problem;
  return Json::object();
}

Session::Answer Session::reset(Fields& fields, const std::string& name) {
  Result<Model*> found = model(name);
  if (!found) return found.error();
  if (Status problem = fields.status()) return *problem;
  (*found)->reset();
  return Json::object();
}

Session::Answer Session::save(Fields& fields, const std::string& name) {
  Result<Model*> found = model(name);
  if (!found) return found.error();
  const Model& model = **found;
  const int layer = static_cast<int>(fields.integer("layer", 0, model.sizes().layers - 1));
  const int start = static_cast<int>(fields.integer("start", 0, model.capacity()));
  const int count = static_cast<int>(fields.integer("count", 0, model.capacity()));
  if (Status problem = fields.status()) return *problem;
  const std::size_t numbers = static_cast<std::size_t>(model.sizes().kv_heads) *
                              static_cast<std::size_t>(model.sizes().head_dim) * static_cast<std::size_t>(count);
  if (Status problem = reserve(2 * numbers * sizeof(float))) return *problem;
  std::vector<float> keys(numbers), values(numbers);
  if (Status problem = model.save(layer, start, count, keys.data(), values.data())) return *problem;
  return Json{{"keys", binary(keys.data(), numbers)}, {"values", binary(values.data(), numbers)}};
}

Session::Answer Session::restore(Fields& fields, const std::string& name) {
  Result<Model*> found = model(name);
  if (!found) return found.error();
  Model& model = **found;
  const int layer = static_cast<int>(fields.integer("layer", 0, model.sizes().layers - 1));
  const int start = static_cast<int>(fields.integer("start", 0, model.sizes().context));
  const int count = static_cast<int>(fields.integer("count", 0, model.sizes().context));
  const std::size_t bytes = static_cast<std::size_t>(model.sizes().kv_heads) *
                            static_cast<std::size_t>(model.sizes().head_dim) * static_cast<std::size_t>(count) *
                            sizeof(float);
  const std::vector<float> keys = floats(fields.bytes("keys", bytes));
  const std::vector<float> values = floats(fields.bytes("values", bytes));
  if (Status problem = fields.status()) return *problem;
  if (Status problem = model.restore(layer, start, count, keys.data(), values.data())) return *problem;
  return Json::object();
}

// The file of `file` and `key`, whether it exists or not; read_file's fields are all read after it.
Result<CacheFile*> Session::cache_file(Fields& fields, const std::string& name) {
  const std::string file = fields.text("file"), key = fields.text("key");
  if (!is_file_name(file)) fields.refuse("`file` must be 1 to 64 of a-z, 0-9 and -");
  if (key.size() > kKeyBytes) fields.refuse("`key` must have at most 64 bytes");
  if (Status problem = fields.status()) return *problem;
  if (folder_.empty()) {
    return Error{"no_folder", "the runner was not given a folder for cache files", "start it with --caches FOLDER"};
  }
  const std::string path = folder_ + "/" + file;
  const auto known = files_.find(name);
  if (known != files_.end() && known->second.path() == path && known->second.key() == key) return &known->second;
  files_.erase(name);
  return &files_.emplace(name, CacheFile(path, key)).first->second;
}

Session::Answer Session::keep(Fields& fields, const std::string& name) {
  Result<Model*> found = model(name);
  if (!found) return found.error();
  const Model& model = **found;
  const int start = static_cast<int>(fields.integer("start", 0, model.capacity()));
  const auto most = static_cast<std::size_t>(model.capacity());
  const std::vector<std::int32_t> tokens = fields.integers("tokens", 0, model.sizes().vocab - 1, most);
  if (tokens.size() > most - static_cast<std::size_t>(start)) fields.refuse("`tokens` pass the cache's slots");
  Result<CacheFile*> file = cache_file(fields, name);
  if (!file) return file.error();
  if (start != 0 && start != (*file)->count()) {
    return Error{"bad_field", "`start` must be 0 or the " + std::to_string((*file)->count()) + " slots of the file",
                 "see PROTOCOL.md"};
  }
  if (std::optional<std::string> problem = (*file)->keep(model, start, tokens)) {
    observe("error", {{"op", "keep"}, {"message", *problem}});
    return Json{{"count", 0}, {"problem", *problem}};
  }
  return Json{{"count", (*file)->count()}};
}

Session::Answer Session::recall(Fields& fields, const std::string& name) {
  Result<Model*> found = model(name);
  if (!found) return found.error();
  Model& model = **found;
  const auto most = static_cast<std::size_t>(model.sizes().context);
  const std::vector<std::int32_t> tokens = fields.integers("tokens", 0, model.sizes().vocab - 1, most);
  Result<CacheFile*> file = cache_file(fields, name);
  if (!file) return file.error();
  const int count = (*file)->recall(model, tokens);
  observe("recall", {{"model", name}, {"count", count}});
  return Json{{"count", count}};
}

}  // namespace hexgraft
