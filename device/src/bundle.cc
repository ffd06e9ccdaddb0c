#include "bundle.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace hexgraft {
namespace {

using Json = nlohmann::json;

constexpr int kFormat = 2;
constexpr std::int64_t kManifestLimit = 16 << 20;
constexpr const char* kLayout = "key[kv_heads,1,head_dim,C] value[kv_heads,1,C,head_dim] past=C";
constexpr const char* kVendorLayout = "key[kv_heads,1,head_dim,CL-T] value[kv_heads,1,CL-T,head_dim] past=CL-T";
// One operator attends, over one buffer that it also writes the rows of a pass into.
constexpr const char* kJoinedLayout =
    "key[1,kv_heads,S,head_dim] value[1,kv_heads,S,head_dim] past=C rows=C..C+T-1";
constexpr const char* kExport = "make it again with `hexgraft export`, or push it again";

Error bad(const std::string& message) { return Error{"bad_bundle", message, kExport}; }

// Size of a plain file, -1 for anything else. Links are refused: a bundle holds plain files.
std::int64_t file_size(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return -1;
  return static_cast<std::int64_t>(info.st_size);
}

// A path that stays inside the bundle: relative, forward slashes, no empty, "." or ".." part.
bool stays_inside(const std::string& name) {
  if (name.find('\\') != std::string::npos || name.find('\0') != std::string::npos) return false;
  std::size_t start = 0;
  while (start <= name.size()) {
    const std::size_t end = std::min(name.find('/', start), name.size());
    const std::string part = name.substr(start, end - start);
    if (part.empty() || part == "." || part == "..") return false;
    start = end + 1;
  }
  return true;
}

// Reads numbers of a model entry; the first that does not fit is kept.
struct Numbers {
  const Json& entry;
  std::string missing;

  std::int64_t operator()(const char* name, std::int64_t low, std::int64_t high) {
    const auto at = entry.find(name);
    if (at != entry.end() && at->is_number_integer()) {
      const auto value = at->get<std::int64_t>();
      if (value >= low && value <= high) return value;
    }
    if (missing.empty()) missing = name;
    return low;
  }
  int small(const char* name) { return static_cast<int>((*this)(name, 1, 1 << 24)); }
  double real(const Json& from, const char* name, double low, double high) {
    const auto at = from.find(name);
    if (at != from.end() && at->is_number()) {
      const auto value = at->get<double>();
      if (std::isfinite(value) && value >= low && value <= high) return value;
    }
    if (missing.empty()) missing = name;
    return low;
  }
};

Result<Json> read_manifest(const std::string& where) {
  const std::int64_t size = file_size(where);
  if (size < 0)
    return Error{"no_bundle", "there is no manifest at " + where, "give the folder that holds bundle.json"};
  if (size > kManifestLimit) return bad(where + " is larger than any manifest");
  std::ifstream stream(where, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  Json manifest = Json::parse(text, nullptr, false);
  if (!manifest.is_object()) return bad(where + " is not a bundle manifest");
  const auto format = manifest.find("format");
  if (format == manifest.end() || !format->is_number_integer() || *format != kFormat) {
    return Error{"bad_bundle", where + " is not of bundle format " + std::to_string(kFormat),
                 "export again with the hexgraft this runner belongs to"};
  }
  return manifest;
}

// Frequencies and scale; false where they are missing, out of range, or not one for every two head dimensions.
bool read_rope(const Json& entry, int head_dim, Rope& rope) {
  const auto frequencies = entry.find("frequencies");
  if (!entry.is_object() || frequencies == entry.end() || !frequencies->is_array()) return false;
  for (const Json& frequency : *frequencies) {
    rope.frequencies.push_back(frequency.is_number() ? frequency.get<double>() : -1);
    if (!(rope.frequencies.back() >= 0 && rope.frequencies.back() <= 1e3)) return false;
  }
  const Json scale = entry.value("scale", Json());
  rope.scale = scale.is_number() ? scale.get<double>() : 0;
  return rope.scale >= 1e-6 && rope.scale <= 1e3 &&
         2 * rope.frequencies.size() == static_cast<std::size_t>(head_dim);
}

// Where a device's cache may grow to, the context alone where nothing is said; false for what makes no sense.
bool read_capacities(const Json& entry, Sizes& sizes) {
  const Json given = entry.value("capacities", Json::array());
  if (!given.is_array()) return false;
  for (const Json& capacity : given) {
    const int last = sizes.capacities.empty() ? 0 : sizes.capacities.back();
    if (!capacity.is_number_integer() || capacity.get<std::int64_t>() <= last ||
        capacity.get<std::int64_t>() > sizes.context) {
      return false;
    }
    sizes.capacities.push_back(capacity.get<int>());
  }
  if (sizes.capacities.empty()) sizes.capacities.push_back(sizes.context);
  return sizes.capacities.back() == sizes.context;
}

// Which features a target gives, and what a draft head takes and gives; false for what makes no sense.
bool read_features(const Json& entry, Sizes& sizes) {
  const Json features = entry.value("features", Json::array()), head = entry.value("head", Json());
  if (!features.is_array() || features.size() > 8) return false;
  sizes.features = static_cast<int>(features.size()) * sizes.hidden;
  sizes.logits = sizes.vocab;
  if (head.is_null()) return true;
  Numbers number{head, {}};
  if (!head.is_object() || !features.empty()) return false;
  sizes.is_head = true;
  sizes.features = sizes.hidden;
  sizes.features_in = static_cast<int>(number("feature_size", 0, 1 << 24));
  sizes.logits = static_cast<int>(number("rows", 1, sizes.vocab));
  return number.missing.empty();
}

// One encoding; false where it is none.
bool read_code(const Json& entry, Code& code) {
  static const std::map<std::string, std::pair<Type, std::array<int, 2>>> kTypes{
      {"uint8", {Type::kUint8, {0, 255}}},
      {"int8", {Type::kInt8, {-128, 127}}},
      {"uint16", {Type::kUint16, {0, 65535}}},
      {"int16", {Type::kInt16, {-32768, 32767}}}};
  if (!entry.is_object()) return false;
  const Json name = entry.value("dtype", Json()), scale = entry.value("scale", Json());
  const Json zero = entry.value("zero", Json());
  const auto type = name.is_string() ? kTypes.find(name.get<std::string>()) : kTypes.end();
  if (type == kTypes.end() || !scale.is_number() || !zero.is_number_integer()) return false;
  const auto [low, high] = type->second.second;
  const auto at = zero.get<std::int64_t>();
  if (!(scale.get<double>() > 0 && scale.get<double>() < 1e6) || at < low || at > high) return false;
  code = Code{type->second.first, static_cast<float>(scale.get<double>()), static_cast<std::int32_t>(at)};
  return code.scale > 0;
}

// How keys and values are stored; false where that makes no sense in the model's layout.
bool read_kv(const Json& entry, Sizes& sizes) {
  const Json layout = entry.value("kv_layout", Json()), type = entry.value("kv_dtype", Json());
  const Json codes = entry.value("kv_encodings", Json::array());
  if (!codes.is_array() || (layout != kLayout && layout != kVendorLayout && layout != kJoinedLayout)) return false;
  sizes.joined = layout == kJoinedLayout;
  if (type == "float32") return codes.empty();
  if (layout != kVendorLayout || codes.size() != static_cast<std::size_t>(sizes.layers)) return false;
  for (const Json& code : codes) {
    KvCode both;
    if (!code.is_object() || !read_code(code.value("key", Json()), both.key) ||
        !read_code(code.value("value", Json()), both.value) || code["key"]["dtype"] != type ||
        code["value"]["dtype"] != type) {
      return false;
    }
    sizes.kv_codes.push_back(both);
  }
  return true;
}

Result<Sizes> read_sizes(const Json& entry, const std::string& where) {
  Numbers number{entry, {}};
  Sizes sizes;
  sizes.layers = static_cast<int>(number("layers", 1, 1024));
  sizes.hidden = number.small("hidden");
  sizes.kv_heads = static_cast<int>(number("kv_heads", 1, 4096));
  sizes.head_dim = static_cast<int>(number("head_dim", 2, 4096));
  sizes.vocab = number.small("vocab");
  sizes.context = number.small("context");
  sizes.mask_value = static_cast<float>(number.real(entry, "mask_value", -1e9, -20));
  const Json local = entry.value("local_rope", Json()), window = entry.value("window", Json());
  const bool rope_fits = read_rope(entry.value("rope", Json()), sizes.head_dim, sizes.rope) &&
                         (local.is_null() || read_rope(local, sizes.head_dim, sizes.local_rope));
  if (!rope_fits) return bad(where + ": the RoPE frequencies do not fit the head dimensions");
  if (!window.is_null()) sizes.window = number.small("window");
  if (!read_features(entry, sizes)) return bad(where + ": the features or the head are not ones it can have");
  const auto widths = entry.find("widths");
  if (widths != entry.end() && widths->is_array()) {
    for (const Json& width : *widths) {
      const int last = sizes.widths.empty() ? 0 : sizes.widths.back();
      if (!width.is_number_integer() || width.get<std::int64_t>() <= last || width.get<std::int64_t>() > 4096) {
        return bad(where + ": the widths are not ascending positive numbers");
      }
      sizes.widths.push_back(width.get<int>());
    }
  }
  if (!read_capacities(entry, sizes)) {
    return bad(where + ": the capacities are not ascending numbers up to the context");
  }
  if (!number.missing.empty()) return bad(where + ": `" + number.missing + "` is missing or out of range");
  if (sizes.widths.empty()) return bad(where + ": there are no widths");
  if (sizes.head_dim % 2 != 0 || !read_kv(entry, sizes)) {
    return bad(where + ": the cache layout is not one this runner knows");
  }
  sizes.max_width = sizes.widths.back();
  return sizes;
}

// The check of one graph's file against the manifest's list.
Status check_file(const Json& manifest, const std::string& folder, const std::string& name,
                  const std::string& where) {
  const auto files = manifest.find("files");
  if (!stays_inside(name) || files == manifest.end() || !files->is_object() || !files->contains(name)) {
    return bad(where + " names a graph that is not in the bundle");
  }
  const Json& entry = (*files)[name];
  const Json size = entry.is_object() ? entry.value("size", Json()) : Json();
  const std::int64_t found = file_size(folder + "/" + name);
  if (!size.is_number_integer() || found != size.get<std::int64_t>()) {
    return bad(folder + "/" + name +
               (found < 0 ? " is missing from the bundle" : " has not the size it was made with"));
  }
  return std::nullopt;
}

// A whole number from 1, 0 where it is null or absent, -1 where it is anything else.
int count(const Json& entry, const char* name) {
  const Json value = entry.value(name, Json());
  if (value.is_null()) return 0;
  if (!value.is_number_integer()) return -1;
  const auto number = value.get<std::int64_t>();
  return number > 0 && number <= (1 << 24) ? static_cast<int>(number) : -1;
}

std::string text(const Json& entry, const char* name) {
  const Json value = entry.value(name, Json());
  return value.is_string() ? value.get<std::string>() : "";
}

// What a graph says of the NPU it was compiled for; false where that makes no sense.
bool read_htp(const Json& htp, GraphFile& file) {
  const Json part = htp.value("part", Json(0)), shared = htp.value("shared", Json(false));
  const Json mask = htp.value("mask_value", Json());
  file.soc = text(htp, "soc");
  file.soc_model = count(htp, "soc_model");
  file.vtcm_mb = count(htp, "vtcm_mb");
  file.parts = htp.contains("parts") ? count(htp, "parts") : 1;
  if (!part.is_number_integer() || !shared.is_boolean() || !(mask.is_null() || mask.is_number())) return false;
  file.part = static_cast<int>(part.get<std::int64_t>());
  file.shared = shared.get<bool>();
  file.mask_value = mask.is_null() ? 0 : mask.get<double>();
  const bool mask_fits = file.mask_value == 0 || (file.mask_value >= -1e9 && file.mask_value <= -20);
  return file.soc_model > 0 && file.vtcm_mb >= 0 && file.parts > 0 && file.parts <= 1024 && file.part >= 0 &&
         file.part < file.parts && mask_fits;
}

// What a graph in the vendor's layout says of itself; false where that makes no sense.
bool read_vendor(const Json& vendor, GraphFile& file) {
  const Json part = vendor.value("part", Json(0)), last = vendor.value("last_logits", Json(false));
  const Json codes = vendor.value("encodings", Json::object());
  file.vendor = true;
  file.parts = vendor.contains("parts") ? count(vendor, "parts") : 1;
  if (!part.is_number_integer() || !last.is_boolean() || !codes.is_object()) return false;
  const auto number = part.get<std::int64_t>();
  if (file.parts < 1 || file.parts > 1024 || number < 0 || number >= file.parts) return false;
  file.part = static_cast<int>(number);
  file.border.last_logits = last.get<bool>();
  const std::map<std::string, Code*> names{{"attention_mask", &file.border.mask},
                                           {"position_ids_cos", &file.border.cos},
                                           {"position_ids_sin", &file.border.sin},
                                           {"logits", &file.border.logits}};
  return std::all_of(codes.items().begin(), codes.items().end(), [&](const auto& code) {
    const auto known = names.find(code.key());
    return known != names.end() && read_code(code.value(), *known->second);
  });
}

// Whether a graph is of the build meant; those of the CPU are of none.
bool is_of(const Json& graph, const BuildName& build) {
  const Json htp = graph.value("htp", Json());
  return !htp.is_object() || ((build.soc.empty() || text(htp, "soc") == build.soc) &&
                              (build.precision.empty() || text(graph, "precision") == build.precision));
}

// Holds graphs and sizes of the vendor's layout against one another, and notes how many columns it has.
Status fit_vendor(ModelFiles& files, bool vendor, const std::string& where) {
  Sizes& sizes = files.sizes;
  for (const GraphFile& file : files.graphs) {
    if (file.vendor != vendor) return bad(where + " has a graph of another cache layout");
    if (!vendor) continue;
    if (file.width == 0 || file.capacity == 0) return bad(where + " has a graph whose size is not fixed");
    if (sizes.columns == 0) sizes.columns = file.width + file.capacity;
    if (file.width + file.capacity != sizes.columns) return bad(where + " has graphs of several context lengths");
  }
  const bool plain =
      sizes.window == 0 && sizes.local_rope.frequencies.empty() && sizes.features == 0 && !sizes.is_head;
  if (vendor && !plain) return bad(where + ": graphs of this cache layout have no windows, features or heads");
  return std::nullopt;
}

Result<GraphFile> read_graph(const Json& graph, const Json& manifest, const std::string& path,
                             const std::string& where) {
  const std::string name = text(graph, "file");
  if (Status problem = check_file(manifest, path, name, where)) return *problem;
  GraphFile file;
  file.path = path + "/" + name;
  file.width = count(graph, "width");
  file.capacity = count(graph, "capacity");
  file.precision = text(graph, "precision");
  const Json htp = graph.value("htp", Json());
  if (htp.is_object()) {
    if (!read_htp(htp, file)) return bad(where + ": " + name + " does not say what it was compiled for");
    if (Status problem = check_file(manifest, path, text(htp, "binary"), where)) return *problem;
  }
  const Json vendor = graph.value("vendor", Json());
  if (!vendor.is_null() && !(vendor.is_object() && read_vendor(vendor, file))) {
    return bad(where + ": " + name + " does not say which part it is, or in what numbers");
  }
  if (file.width < 0 || file.capacity < 0) return bad(where + " has a graph of impossible size");
  return file;
}

}  // namespace

Result<ModelFiles> read_model(const std::string& path, const std::string& role, const std::string& provider,
                              const BuildName& build) {
  const std::string where = path + "/bundle.json";
  Result<Json> manifest = read_manifest(where);
  if (!manifest) return manifest.error();
  const auto entry = manifest->find(role);
  if (entry == manifest->end() || !entry->is_object()) {
    return Error{"no_model", where + " has no " + role + " model", "export again with `--draft CHECKPOINT`"};
  }
  Result<Sizes> sizes = read_sizes(*entry, where);
  if (!sizes) return sizes.error();
  ModelFiles files{*sizes, {}};
  const Json graphs = entry->value("graphs", Json());
  bool others = false;
  for (const Json& graph : graphs.is_array() ? graphs : Json::array()) {
    if (!graph.is_object()) continue;
    const Json runs_on = graph.value("provider", Json());
    if (files.sizes.joined && runs_on != "cpu")
      return bad(where + ": graphs of this cache layout run on the cpu alone");
    if (runs_on != provider) continue;
    if (!is_of(graph, build)) {
      others = true;
      continue;
    }
    Result<GraphFile> file = read_graph(graph, *manifest, path, where);
    if (!file) return file.error();
    files.graphs.push_back(std::move(*file));
  }
  if (files.graphs.empty() && others) {
    return Error{"no_graph", "the bundle has no " + provider + " graph for that chip and precision",
                 "choose what it has"};
  }
  if (files.graphs.empty()) {
    return Error{"no_graph", path + " has no " + provider + " graph of the " + role + " model",
                 "export it for this provider, or choose another one"};
  }
  if (Status problem = fit_vendor(files, entry->value("kv_layout", Json()) == kVendorLayout, where))
    return *problem;
  return files;
}

}  // namespace hexgraft
