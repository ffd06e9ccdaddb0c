// Typed, bounded access to the fields of one operation; the first thing wrong is kept and everything is accounted
// for.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "result.h"

namespace hexgraft {

using Json = nlohmann::json;

// Reads never fail on the spot: they return a harmless value and `status` tells afterwards, so that an operation
// reads all its fields and then asks once. A field nobody read is an error too.
class Fields {
 public:
  explicit Fields(const Json& map) : map_(map) {}

  bool has(const std::string& name) const { return map_.contains(name); }
  std::int64_t integer(const std::string& name, std::int64_t low, std::int64_t high);
  std::vector<std::int32_t> integers(const std::string& name, std::int64_t low, std::int64_t high,
                                     std::size_t most);
  bool boolean(const std::string& name);
  std::string text(const std::string& name);
  std::map<std::string, std::string> texts(const std::string& name);
  // Bytes of exactly this size.
  const std::vector<std::uint8_t>& bytes(const std::string& name, std::size_t size);

  void refuse(const std::string& what);
  // The first thing wrong so far, fields nobody read aside.
  Status problem() const { return problem_; }
  Status status();

 private:
  const Json* find(const std::string& name);

  const Json& map_;
  std::set<std::string> read_;
  Status problem_;
};

}  // namespace hexgraft
