#include "ort_graphs.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <set>
#include <utility>

namespace hexgraft {
namespace {

constexpr std::size_t kMostBindings = 64;
// While the host thinks: clocks may fall, and the next pass takes its mode again first.
constexpr const char* kRestingMode = "low_power_saver";

using Shape = std::vector<std::int64_t>;

std::string layer_name(const char* kind, int layer, const char* side) {
  return std::string("past_") + kind + "_" + std::to_string(layer) + "_" + side;
}

ONNXTensorElementDataType element(Type type) {
  switch (type) {
    case Type::kUint8: return ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
    case Type::kInt8: return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8;
    case Type::kUint16: return ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16;
    case Type::kInt16: return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16;
    default: return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  }
}

// What an input of the contract must be, by its name.
ONNXTensorElementDataType input_type(const Sizes& sizes, const Border& border, const std::string& name) {
  if (name == "input_ids") return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
  if (name == "attention_mask") return element(border.mask.type);
  if (name == "position_ids_cos") return element(border.cos.type);
  if (name == "position_ids_sin") return element(border.sin.type);
  const bool quantised = name.rfind("past_", 0) == 0 && !sizes.kv_codes.empty();
  return element(quantised ? sizes.kv_codes.front().key.type : Type::kFloat);
}

// A layer's keys or values, of so many slots, as graphs see them.
Shape kv_shape(const Sizes& sizes, bool is_key, std::int64_t slots) {
  const std::int64_t heads = sizes.kv_heads, dim = sizes.head_dim;
  if (sizes.joined) return {1, heads, slots, dim};
  return is_key ? Shape{heads, 1, dim, slots} : Shape{heads, 1, slots, dim};
}

// Whether a graph's shape is the one wanted, in both of which -1 is a size left free; a graph may leave free more.
bool fits(const Shape& found, const Shape& wanted) {
  return std::equal(found.begin(), found.end(), wanted.begin(), wanted.end(),
                    [](std::int64_t has, std::int64_t wants) { return has < 0 || has == wants; });
}

// Refuse an input that is not of the contract's numbers, or not in the cache's layout, whose slots are -1 if free.
Status check_input(const Sizes& sizes, const Border& border, std::int64_t slots, const std::string& name,
                   const Ort::TypeInfo& type) {
  const auto info = type.GetTensorTypeAndShapeInfo();
  if (info.GetElementType() != input_type(sizes, border, name)) {
    return Error{"bad_graph", "the graph's input " + name + " has a number type this runner does not feed",
                 "export it again"};
  }
  const bool is_key = name.rfind("past_key_", 0) == 0, is_value = name.rfind("past_value_", 0) == 0;
  if ((is_key || is_value) && !fits(info.GetShape(), kv_shape(sizes, is_key, slots))) {
    return Error{"bad_graph", "the graph's input " + name + " has not the shape of the bundle's cache layout",
                 "export it again"};
  }
  return std::nullopt;
}

std::size_t volume(const Shape& shape) {
  std::size_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
  return count;
}

}  // namespace

OrtGraphs::OrtGraphs(const Sizes& sizes, std::string provider, int threads, Chains chains)
    : sizes_(sizes),
      provider_(std::move(provider)),
      threads_(threads),
      chains_(std::move(chains)),
      memory_(Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault)) {}

Status OrtGraphs::check() const {
  for (const auto& entry : chains_) {
    const auto [width, capacity] = entry.first;
    if (Status problem = check_chain(width, capacity, entry.second)) return problem;
  }
  return std::nullopt;
}

// All parts together take the contract's inputs and give its outputs; what else one gives, a later one takes.
Status OrtGraphs::check_chain(int width, int capacity, const Chain& chain) const {
  const Border border = sizes_.border(width);
  const std::int64_t slots = capacity > 0 ? capacity : -1;
  std::set<std::string> wanted_in{"input_ids", "attention_mask", "position_ids_cos", "position_ids_sin"};
  if (sizes_.window > 0) wanted_in.insert("attention_mask_local");
  if (!sizes_.local_rope.frequencies.empty()) {
    wanted_in.insert({"position_ids_cos_local", "position_ids_sin_local"});
  }
  std::set<std::string> wanted_out{"logits"}, taken, given;
  for (int i = 0; i < sizes_.layers; ++i) {
    for (const char* kind : {"key", "value"}) {
      wanted_in.insert(layer_name(kind, i, "in"));
      wanted_out.insert(layer_name(kind, i, "out"));
    }
  }
  if (sizes_.features > 0) wanted_out.insert("hidden");
  if (sizes_.is_head) wanted_in.insert("hidden_in");
  if (sizes_.features_in > 0) wanted_in.insert("features");
  for (const Ort::Session& part : chain) {
    const std::vector<std::string> inputs = part.GetInputNames();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (given.count(inputs[i]) > 0) continue;  // from a part before, in whatever numbers that gives
      if (Status problem = check_input(sizes_, border, slots, inputs[i], part.GetInputTypeInfo(i))) return problem;
      taken.insert(inputs[i]);
    }
    for (const std::string& output : part.GetOutputNames()) given.insert(output);
  }
  const bool all_given = std::includes(given.begin(), given.end(), wanted_out.begin(), wanted_out.end());
  if (taken != wanted_in || !all_given) {
    return Error{"bad_graph", "a graph's inputs or outputs are not those of the bundle's sizes", "export it again"};
  }
  return std::nullopt;
}

OrtGraphs::Chain& OrtGraphs::chain(int width, int capacity) {
  const auto own = chains_.find({width, capacity});
  return own != chains_.end() ? own->second : chains_.at({0, 0});
}

OrtGraphs::Tensors OrtGraphs::tensors(int width, Cache& cache, Pass& pass) const {
  const std::int64_t t = width, c = cache.past(width), dim = sizes_.head_dim;
  const Border border = sizes_.border(width);
  const Type kv = sizes_.kv_codes.empty() ? Type::kFloat : sizes_.kv_codes.front().key.type;
  Tensors made;
  const auto add = [&](const std::string& name, void* data, const Shape& shape, Type type = Type::kFloat) {
    made.emplace(name, Ort::Value::CreateTensor(memory_, data, volume(shape) * bytes_of(type), shape.data(),
                                                shape.size(), element(type)));
  };
  const Shape ids{1, t};
  auto* tokens = static_cast<std::int32_t*>(pass.ids.data());
  made.emplace("input_ids", Ort::Value::CreateTensor<std::int32_t>(memory_, tokens, volume(ids), ids.data(), 2));
  add("attention_mask", pass.mask_data(width), {1, 1, t, c + t}, border.mask.type);
  add("position_ids_cos", pass.cos_data(width), {1, 1, t, dim / 2}, border.cos.type);
  add("position_ids_sin", pass.sin_data(width), {1, 1, t, dim / 2}, border.sin.type);
  if (sizes_.window > 0) add("attention_mask_local", pass.mask_local.floats(), {1, 1, t, c + t});
  if (!sizes_.local_rope.frequencies.empty()) {
    add("position_ids_cos_local", pass.cos_local.floats(), {1, 1, t, dim / 2});
    add("position_ids_sin_local", pass.sin_local.floats(), {1, 1, t, dim / 2});
  }
  add("logits", pass.logits_data(width), {1, border.last_logits ? 1 : t, sizes_.logits}, border.logits.type);
  if (sizes_.features > 0) add("hidden", pass.hidden.floats(), {1, t, sizes_.features});
  if (sizes_.is_head) add("hidden_in", pass.hidden_in.floats(), {1, t, sizes_.hidden});
  if (sizes_.features_in > 0) add("features", pass.features_in.floats(), {1, t, sizes_.features_in});
  // In the joined layout what goes in comes out again: its operator copies no cache where both are one address.
  const std::int64_t in = cache.extent(width), out = sizes_.joined ? in : t;
  for (int i = 0; i < sizes_.layers; ++i) {
    for (const bool is_key : {true, false}) {
      const char* kind = is_key ? "key" : "value";
      void* held = is_key ? cache.keys(i, width) : cache.values(i, width);
      auto& rows = is_key ? pass.keys : pass.values;
      add(layer_name(kind, i, "in"), held, kv_shape(sizes_, is_key, in), kv);
      void* left = sizes_.joined ? held : rows[static_cast<std::size_t>(i)].data();
      add(layer_name(kind, i, "out"), left, kv_shape(sizes_, is_key, out), kv);
    }
  }
  return made;
}

std::vector<Ort::IoBinding> OrtGraphs::bind(Chain& chain, int width, Cache& cache, Pass& pass) {
  Tensors known = tensors(width, cache, pass);
  Ort::AllocatorWithDefaultOptions allocator;
  std::vector<Ort::IoBinding> bindings;
  for (Ort::Session& part : chain) {
    Ort::IoBinding binding(part);
    for (const std::string& name : part.GetInputNames()) binding.BindInput(name.c_str(), known.at(name));
    const std::vector<std::string> outputs = part.GetOutputNames();
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (known.count(outputs[i]) == 0) {  // passes between parts; the bindings keep it alive
        const auto info = part.GetOutputTypeInfo(i);
        const Shape shape = info.GetTensorTypeAndShapeInfo().GetShape();
        const ONNXTensorElementDataType type = info.GetTensorTypeAndShapeInfo().GetElementType();
        known.emplace(outputs[i], Ort::Value::CreateTensor(allocator, shape.data(), shape.size(), type));
      }
      binding.BindOutput(outputs[i].c_str(), known.at(outputs[i]));
    }
    bindings.push_back(std::move(binding));
  }
  return bindings;
}

bool OrtGraphs::set_power(const std::string& mode) {
  const char* key = "ep.dynamic.qnn_htp_performance_mode";
  const char* value = mode.c_str();
  try {
    for (auto& entry : chains_) {
      for (Ort::Session& part : entry.second) part.SetEpDynamicOptions(&key, &value, 1);
    }
    return true;
  } catch (const Ort::Exception&) {
    return false;
  }
}

void OrtGraphs::rest() {
  if (performance_.empty() || resting_) return;
  resting_ = set_power(kRestingMode);
  // A provider that cannot be told is not asked again.
  if (!resting_) performance_.clear();
}

Result<double> OrtGraphs::run(int width, Cache& cache, Pass& pass) {
  try {
    if (cache_epoch_ != cache.epoch() || pass_epoch_ != pass.epoch() || bindings_.size() >= kMostBindings) {
      bindings_.clear();
      cache_epoch_ = cache.epoch();
      pass_epoch_ = pass.epoch();
    }
    if (resting_) {
      set_power(performance_);
      resting_ = false;
    }
    Chain& parts = chain(width, cache.past(width));
    auto binding = bindings_.find(width);
    if (binding == bindings_.end()) binding = bindings_.emplace(width, bind(parts, width, cache, pass)).first;
    const Ort::RunOptions options;
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].Run(options, binding->second[i]);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  } catch (const Ort::Exception& problem) {
    bindings_.clear();
    return runtime_error("pass_failed", "the pass failed in ONNX Runtime", problem, "load the model again");
  }
}

}  // namespace hexgraft
