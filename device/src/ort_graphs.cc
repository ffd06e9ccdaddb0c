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
    if (Status problem = check_chain(entry.second)) return problem;
  }
  return std::nullopt;
}

// All parts together take the contract's inputs and give its outputs; what else one gives, a later one takes.
Status OrtGraphs::check_chain(const Chain& chain) const {
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
      const auto wanted =
          inputs[i] == "input_ids" ? ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 : ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
      if (part.GetInputTypeInfo(i).GetTensorTypeAndShapeInfo().GetElementType() != wanted) {
        return Error{"bad_graph", "the graph's input " + inputs[i] + " has a number type this runner does not feed",
                     "export it again with float32 inputs and outputs"};
      }
      if (given.count(inputs[i]) == 0) taken.insert(inputs[i]);
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
  const std::int64_t t = width, c = cache.capacity(), heads = sizes_.kv_heads, dim = sizes_.head_dim;
  Tensors made;
  const auto add = [&](const std::string& name, float* data, const Shape& shape) {
    made.emplace(name, Ort::Value::CreateTensor<float>(memory_, data, volume(shape), shape.data(), shape.size()));
  };
  const Shape ids{1, t};
  auto* tokens = static_cast<std::int32_t*>(pass.ids.data());
  made.emplace("input_ids", Ort::Value::CreateTensor<std::int32_t>(memory_, tokens, volume(ids), ids.data(), 2));
  add("attention_mask", pass.mask.floats(), {1, 1, t, c + t});
  add("position_ids_cos", pass.cos.floats(), {1, 1, t, dim / 2});
  add("position_ids_sin", pass.sin.floats(), {1, 1, t, dim / 2});
  if (sizes_.window > 0) add("attention_mask_local", pass.mask_local.floats(), {1, 1, t, c + t});
  if (!sizes_.local_rope.frequencies.empty()) {
    add("position_ids_cos_local", pass.cos_local.floats(), {1, 1, t, dim / 2});
    add("position_ids_sin_local", pass.sin_local.floats(), {1, 1, t, dim / 2});
  }
  add("logits", pass.logits.floats(), {1, t, sizes_.logits});
  if (sizes_.features > 0) add("hidden", pass.hidden.floats(), {1, t, sizes_.features});
  if (sizes_.is_head) add("hidden_in", pass.hidden_in.floats(), {1, t, sizes_.hidden});
  if (sizes_.features_in > 0) add("features", pass.features_in.floats(), {1, t, sizes_.features_in});
  for (int i = 0; i < sizes_.layers; ++i) {
    const auto at = static_cast<std::size_t>(i);
    add(layer_name("key", i, "in"), cache.keys(i), {heads, 1, dim, c});
    add(layer_name("value", i, "in"), cache.values(i), {heads, 1, c, dim});
    add(layer_name("key", i, "out"), pass.keys[at].floats(), {heads, 1, dim, t});
    add(layer_name("value", i, "out"), pass.values[at].floats(), {heads, 1, t, dim});
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
        const Shape shape = part.GetOutputTypeInfo(i).GetTensorTypeAndShapeInfo().GetShape();
        known.emplace(outputs[i], Ort::Value::CreateTensor<float>(allocator, shape.data(), shape.size()));
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
    Chain& parts = chain(width, cache.capacity());
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
