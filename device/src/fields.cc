#include "fields.h"

namespace hexgraft {
namespace {

constexpr std::size_t kTextLimit = 4096;

// True where `value` is an integer within bounds; doubles, even whole ones, are not integers here.
bool within(const Json& value, std::int64_t low, std::int64_t high) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX))
    return false;
  const auto number = value.get<std::int64_t>();
  return number >= low && number <= high;
}

std::string range(std::int64_t low, std::int64_t high) {
  return "from " + std::to_string(low) + " to " + std::to_string(high);
}

}  // namespace

void Fields::refuse(const std::string& what) {
  if (!problem_) problem_ = Error{"bad_field", what, "see the operation in PROTOCOL.md"};
}

const Json* Fields::find(const std::string& name) {
  read_.insert(name);
  const auto at = map_.find(name);
  if (at == map_.end()) {
    refuse("the field `" + name + "` is missing");
    return nullptr;
  }
  return &*at;
}

std::int64_t Fields::integer(const std::string& name, std::int64_t low, std::int64_t high) {
  const Json* value = find(name);
  if (value == nullptr) return low;
  if (!within(*value, low, high)) {
    refuse("`" + name + "` must be an integer " + range(low, high));
    return low;
  }
  return value->get<std::int64_t>();
}

std::vector<std::int32_t> Fields::integers(const std::string& name, std::int64_t low, std::int64_t high,
                                           std::size_t most) {
  std::vector<std::int32_t> numbers;
  const Json* value = find(name);
  if (value == nullptr) return numbers;
  if (!value->is_array() || value->size() > most) {
    refuse("`" + name + "` must be an array of at most " + std::to_string(most) + " integers");
    return numbers;
  }
  for (const Json& item : *value) {
    if (!within(item, low, high)) {
      refuse("`" + name + "` must hold integers " + range(low, high));
      return {};
    }
    numbers.push_back(static_cast<std::int32_t>(item.get<std::int64_t>()));
  }
  return numbers;
}

bool Fields::boolean(const std::string& name) {
  const Json* value = find(name);
  if (value == nullptr) return false;
  if (!value->is_boolean()) {
    refuse("`" + name + "` must be true or false");
    return false;
  }
  return value->get<bool>();
}

std::string Fields::text(const std::string& name) {
  const Json* value = find(name);
  if (value == nullptr) return {};
  if (!value->is_string() || value->get_ref<const std::string&>().size() > kTextLimit ||
      value->get_ref<const std::string&>().find('\0') != std::string::npos) {
    refuse("`" + name + "` must be a string of at most " + std::to_string(kTextLimit) + " bytes without NUL");
    return {};
  }
  return value->get<std::string>();
}

std::map<std::string, std::string> Fields::texts(const std::string& name) {
  std::map<std::string, std::string> pairs;
  const Json* value = find(name);
  if (value == nullptr) return pairs;
  if (!value->is_object() || value->size() > 64) {
    refuse("`" + name + "` must be a map of at most 64 strings");
    return pairs;
  }
  for (const auto& item : value->items()) {
    if (!item.value().is_string() || item.value().get_ref<const std::string&>().size() > 256) {
      refuse("`" + name + "` must hold strings of at most 256 bytes");
      return {};
    }
    pairs[item.key()] = item.value().get<std::string>();
  }
  return pairs;
}

const std::vector<std::uint8_t>& Fields::bytes(const std::string& name, std::size_t size) {
  static const std::vector<std::uint8_t> kNone;
  const Json* value = find(name);
  if (value == nullptr) return kNone;
  if (!value->is_binary() || value->get_binary().size() != size) {
    refuse("`" + name + "` must be " + std::to_string(size) + " bytes");
    return kNone;
  }
  return value->get_binary();
}

Status Fields::status() {
  if (problem_) return problem_;
  for (const auto& item : map_.items()) {
    if (item.key() != "op" && item.key() != "model" && read_.count(item.key()) == 0) {
      refuse("the field `" + item.key() + "` is not known here");
      return problem_;
    }
  }
  return std::nullopt;
}

}  // namespace hexgraft
