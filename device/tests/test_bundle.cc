// Manifests that are read, and manifests that are refused.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "bundle.h"
#include "check.h"

using namespace hexgraft;
using Json = nlohmann::json;

namespace {

struct Folder {
  std::string path;
  Folder() {
    char name[] = "/tmp/hexgraft-bundle-XXXXXX";
    path = ::mkdtemp(name);
    ::mkdir((path + "/target").c_str(), 0700);
    write("target/model.onnx", "graph");
  }
  ~Folder() {
    for (const char* name : {"/target/model.onnx", "/target", "/bundle.json"}) {
      ::unlink((path + name).c_str());
      ::rmdir((path + name).c_str());
    }
    ::rmdir(path.c_str());
  }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path + "/" + name) << content;
  }
};

Json manifest() {
  return {{"format", 2},
          {"target",
           {{"layers", 2},
            {"hidden", 64},
            {"kv_heads", 2},
            {"head_dim", 16},
            {"vocab", 320},
            {"context", 512},
            {"rope", {{"dim", 16}, {"frequencies", {1.0, .5, .25, .125, .06, .03, .015, .007}}, {"scale", 1.5}}},
            {"widths", {1, 8}},
            {"kv_dtype", "float32"},
            {"kv_layout", "key[kv_heads,1,head_dim,C] value[kv_heads,1,C,head_dim] past=C"},
            {"mask_value", -100.0},
            {"features", {0, 1}},
            {"graphs",
             {{{"file", "target/model.onnx"}, {"provider", "cpu"}, {"width", nullptr}, {"capacity", nullptr}}}}}},
          {"draft", nullptr},
          {"files", {{"target/model.onnx", {{"size", 5}, {"sha256", "00"}}}}}};
}

std::string code(const Folder& folder, const Json& value, const std::string& role = "target",
                 const std::string& provider = "cpu") {
  folder.write("bundle.json", value.is_string() ? value.get<std::string>() : value.dump());
  Result<ModelFiles> files = read_model(folder.path, role, provider);
  return files ? "" : files.error().code;
}

Json with(const std::string& pointer, const Json& value) {
  Json changed = manifest();
  changed[Json::json_pointer(pointer)] = value;
  return changed;
}

// Keys and values in uint8, the mask in uint16, two parts over 64 columns.
Json vendor_manifest() {
  Json made = manifest();
  Json& target = made["target"];
  const Json code{{"dtype", "uint8"}, {"scale", 0.02}, {"zero", 128}};
  target["kv_layout"] = "key[kv_heads,1,head_dim,CL-T] value[kv_heads,1,CL-T,head_dim] past=CL-T";
  target["kv_dtype"] = "uint8";
  target["kv_encodings"] = {{{"key", code}, {"value", code}}, {{"key", code}, {"value", code}}};
  target["context"] = 56;
  target.erase("features");
  target["graphs"] = Json::array();
  for (const int part : {0, 1}) {
    const Json mask{{"attention_mask", {{"dtype", "uint16"}, {"scale", 0.001}, {"zero", 65535}}}};
    target["graphs"].push_back({{"file", "target/model.onnx"},
                                {"provider", "cpu"},
                                {"width", 8},
                                {"capacity", 56},
                                {"vendor", {{"part", part}, {"parts", 2}, {"encodings", mask}}}});
  }
  return made;
}

void vendor_layout(const Folder& folder) {
  CHECK(code(folder, vendor_manifest()).empty());
  const ModelFiles files = *read_model(folder.path, "target", "cpu");
  CHECK(files.sizes.columns == 64 && files.sizes.kv_codes.size() == 2);
  CHECK(files.sizes.kv_codes[1].value.type == Type::kUint8 && files.sizes.kv_codes[1].value.zero == 128);
  CHECK(files.graphs[1].part == 1 && files.graphs[1].parts == 2 && !files.graphs[1].border.last_logits);
  CHECK(files.graphs[0].border.mask.type == Type::kUint16 && files.graphs[0].border.mask.zero == 65535);
  CHECK(files.graphs[0].border.logits.type == Type::kFloat);
  const auto refused = [&](const char* pointer, const Json& value) {
    Json changed = vendor_manifest();
    changed[Json::json_pointer(pointer)] = value;
    CHECK(code(folder, changed) == "bad_bundle");
  };
  refused("/target/kv_dtype", "uint16");
  refused("/target/kv_dtype", "float32");
  refused("/target/kv_encodings/0/key/scale", 0);
  refused("/target/kv_encodings/0/key/zero", 256);
  refused("/target/kv_encodings/0/value/dtype", "int8");
  refused("/target/kv_encodings/0", 3);
  refused("/target/kv_encodings", Json::array());
  refused("/target/graphs/1/capacity", 57);
  refused("/target/graphs/1/capacity", nullptr);
  refused("/target/graphs/1/vendor", nullptr);
  refused("/target/graphs/1/vendor", "x");
  refused("/target/graphs/1/vendor/part", 2);
  refused("/target/graphs/1/vendor/last_logits", 1);
  refused("/target/graphs/1/vendor/encodings/attention_mask/dtype", "float16");
  refused("/target/graphs/1/vendor/encodings/past_key_0_in",
          vendor_manifest()["target"]["graphs"][0]["vendor"]["encodings"]["attention_mask"]);
  refused("/target/window", 16);
  refused("/target/kv_layout", manifest()["target"]["kv_layout"]);
}

// Keys by slot, and the rows of a pass behind them: for one graph on the CPU, in float32.
void joined_layout(const Folder& folder) {
  CHECK(code(folder, manifest()).empty() && !read_model(folder.path, "target", "cpu")->sizes.joined);
  const Json made =
      with("/target/kv_layout", "key[1,kv_heads,S,head_dim] value[1,kv_heads,S,head_dim] past=C rows=C..C+T-1");
  CHECK(code(folder, made).empty() && read_model(folder.path, "target", "cpu")->sizes.joined);
  CHECK(code(folder, made, "target", "htp") == "no_graph");
  const auto refused = [&](const char* pointer, const Json& value) {
    Json changed = made;
    changed[Json::json_pointer(pointer)] = value;
    CHECK(code(folder, changed) == "bad_bundle");
  };
  const Json vendor = vendor_manifest()["target"];
  refused("/target/kv_encodings", vendor["kv_encodings"]);
  refused("/target/kv_dtype", "uint8");
  refused("/target/graphs/0/vendor", vendor["graphs"][0]["vendor"]);
  refused("/target/graphs/1",
          {{"file", "target/model.onnx"}, {"provider", "htp"}, {"width", 8}, {"capacity", 512}});
  Json quantised = made;
  quantised["target"].update({{"kv_dtype", "uint8"}, {"kv_encodings", vendor["kv_encodings"]}});
  CHECK(code(folder, quantised) == "bad_bundle");
}

}  // namespace

int main() {
  const Folder folder;
  CHECK(read_model(folder.path, "target", "cpu").error().code == "no_bundle");
  CHECK(code(folder, manifest()).empty());
  Result<ModelFiles> files = read_model(folder.path, "target", "cpu");
  CHECK(files && files->sizes.max_width == 8 && files->sizes.rope.frequencies.size() == 8 &&
        files->sizes.rope.scale == 1.5 && files->sizes.window == 0 && files->graphs.size() == 1);
  CHECK(files->sizes.features == 128 && files->sizes.logits == 320 && !files->sizes.is_head);
  CHECK(code(folder, with("/target/features", 3)) == "bad_bundle");
  CHECK(code(folder, with("/target/head", {{"feature_size", 192}, {"rows", 100}})) == "bad_bundle");
  Json with_head = with("/target/head", {{"kind", "eagle3"}, {"feature_size", 192}, {"rows", 100}});
  with_head["target"].erase("features");
  CHECK(code(folder, with_head).empty());
  const Sizes head = read_model(folder.path, "target", "cpu")->sizes;
  CHECK(head.is_head && head.features == 64 && head.features_in == 192 && head.logits == 100 && head.vocab == 320);
  with_head["target"]["head"]["rows"] = 321;
  CHECK(code(folder, with_head) == "bad_bundle");
  CHECK(code(folder, manifest(), "draft") == "no_model");
  CHECK(code(folder, manifest(), "target", "htp") == "no_graph");
  CHECK(code(folder, "not json") == "bad_bundle");
  CHECK(code(folder, "[[[[") == "bad_bundle");
  CHECK(code(folder, with("/format", 1)) == "bad_bundle");
  for (const char* name : {"layers", "hidden", "kv_heads", "head_dim", "vocab", "context"}) {
    for (const Json& value : {Json(0), Json(-1), Json(1.5), Json("3"), Json(nullptr), Json(1LL << 60)}) {
      CHECK(code(folder, with(std::string("/target/") + name, value)) == "bad_bundle");
    }
  }
  CHECK(code(folder, with("/target/head_dim", 15)) == "bad_bundle");
  CHECK(code(folder, with("/target/mask_value", 0)) == "bad_bundle");
  CHECK(code(folder, with("/target/rope/scale", "x")) == "bad_bundle");
  CHECK(code(folder, with("/target/rope/frequencies/7", -1)) == "bad_bundle");
  CHECK(code(folder, with("/target/rope/frequencies/7", "x")) == "bad_bundle");
  CHECK(code(folder, with("/target/rope/frequencies/8", 1)) == "bad_bundle");
  CHECK(code(folder, with("/target/window", 128)).empty());
  CHECK(read_model(folder.path, "target", "cpu")->sizes.window == 128);
  CHECK(code(folder, with("/target/window", 0)) == "bad_bundle");
  CHECK(code(folder, with("/target/window", "x")) == "bad_bundle");
  CHECK(code(folder, with("/target/local_rope", {{"frequencies", {1.0}}, {"scale", 1.0}})) == "bad_bundle");
  CHECK(code(folder, with("/target/local_rope", manifest()["target"]["rope"])).empty());
  CHECK(read_model(folder.path, "target", "cpu")->sizes.local_rope.scale == 1.5);
  CHECK(code(folder, with("/target/rope", 3)) == "bad_bundle");
  CHECK(code(folder, with("/target/kv_layout", "other")) == "bad_bundle");
  CHECK(code(folder, with("/target/widths", Json::array({8, 1}))) == "bad_bundle");
  CHECK(code(folder, with("/target/graphs", 3)) == "no_graph");
  for (const char* name :
       {"../model.onnx", "/etc/passwd", "target/../target/model.onnx", "target//model.onnx", "", "other.onnx"}) {
    Json escaping = with("/target/graphs/0/file", name);
    escaping["files"][name] = {{"size", 5}};
    if (std::string(name) == "other.onnx") escaping["files"].erase(name);
    CHECK(code(folder, escaping) == "bad_bundle");
  }
  vendor_layout(folder);
  joined_layout(folder);
  const Json htp{
      {"soc", "SM8650"}, {"soc_model", 57}, {"arch", 75}, {"qairt", "2.51.0"},  {"binary", "target/model.onnx"},
      {"vtcm_mb", 8},    {"part", 1},       {"parts", 2}, {"mask_value", -60.5}};
  const auto compiled = [&](const std::string& name, const Json& value) {
    Json changed = with("/target/graphs/0/htp", htp);
    changed["target"]["graphs"][0].update(
        {{"provider", "htp"}, {"precision", "w8a16"}, {"width", 8}, {"capacity", 256}});
    if (!name.empty()) changed["target"]["graphs"][0]["htp"][name] = value;
    return changed;
  };
  CHECK(code(folder, compiled("", nullptr), "target", "htp").empty());
  const GraphFile graph = read_model(folder.path, "target", "htp")->graphs[0];
  CHECK(graph.width == 8 && graph.capacity == 256 && graph.precision == "w8a16" && graph.soc == "SM8650");
  CHECK(graph.soc_model == 57 && graph.vtcm_mb == 8 && graph.part == 1 && graph.parts == 2 && !graph.shared);
  CHECK(graph.mask_value == -60.5);
  CHECK(code(folder, compiled("vtcm_mb", nullptr), "target", "htp").empty());
  CHECK(code(folder, compiled("mask_value", nullptr), "target", "htp").empty());
  for (const auto& [name, value] : {std::pair<const char*, Json>("part", 2),
                                    {"part", -1},
                                    {"part", "1"},
                                    {"parts", 0},
                                    {"soc_model", "57"},
                                    {"soc_model", 0},
                                    {"mask_value", 5},
                                    {"shared", 1},
                                    {"vtcm_mb", -8},
                                    {"binary", "../x.bin"},
                                    {"binary", "target/none.bin"},
                                    {"binary", 3}}) {
    CHECK(code(folder, compiled(name, value), "target", "htp") == "bad_bundle");
  }
  // Of several builds only the one that is meant need be there.
  Json builds = compiled("part", 0);
  builds["target"]["graphs"][0]["htp"]["parts"] = 1;
  Json other = builds["target"]["graphs"][0];
  other["htp"]["soc"] = "SM8750";
  other["htp"]["binary"] = "target/other.bin";
  builds["target"]["graphs"].push_back(other);
  builds["files"]["target/other.bin"] = {{"size", 7}};
  CHECK(code(folder, builds, "target", "htp") == "bad_bundle");
  CHECK(read_model(folder.path, "target", "htp", {"SM8650", ""})->graphs.size() == 1);
  CHECK(read_model(folder.path, "target", "htp", {"SM8650", "w8a16"})->graphs.size() == 1);
  CHECK(read_model(folder.path, "target", "htp", {"SM8750", ""}).error().code == "bad_bundle");
  CHECK(read_model(folder.path, "target", "htp", {"SM8650", "fp16"}).error().code == "no_graph");
  folder.write("target/model.onnx", "longer graph");
  CHECK(code(folder, manifest()) == "bad_bundle");
  return REPORT();
}
