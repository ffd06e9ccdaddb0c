// A file that holds a model's first slots and the tokens they were computed from, so that a runner started after a
// lost link can go on where the last one stood.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model.h"

namespace hexgraft {

// Slots are only ever appended: those of a text so far do not change. A file cut off anywhere, or altered, counts
// as far as its records are whole.
class CacheFile {
 public:
  // `key` tells caches apart that were computed in different ways; at most 64 bytes.
  CacheFile(std::string path, std::string key) : path_(std::move(path)), key_(std::move(key)) {}
  CacheFile(CacheFile&& other) noexcept;
  CacheFile& operator=(CacheFile&& other) noexcept;
  ~CacheFile();

  const std::string& path() const { return path_; }
  const std::string& key() const { return key_; }
  int count() const { return count_; }

  // Append slots start.., one for each token; `start` is count(), or 0 to begin anew. What went wrong in words, and
  // then there is no file any more: a full disk must not end a run.
  std::optional<std::string> keep(const Model& model, int start, const std::vector<std::int32_t>& tokens);
  // Restore the file's slots as far as their tokens are those of the text, and cut it there. count() of them.
  int recall(Model& model, const std::vector<std::int32_t>& text);
  void remove();

 private:
  bool begin(const Sizes& sizes);
  bool append(const Model& model, int start, const std::int32_t* tokens, int count);
  // Whether the record at `at` was whole and of that text; `at` is behind it then.
  bool take(Model& model, const std::vector<std::int32_t>& text, std::int64_t& at);
  void close();

  std::string path_, key_;
  int fd_ = -1;
  int count_ = 0;
  std::int64_t end_ = 0;  // bytes of whole records
};

}  // namespace hexgraft
