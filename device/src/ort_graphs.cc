#include "ort_graphs.h"

#include <chrono>
#include <cstdint>
#include <set>
#include <utility>

namespace hexgraft {
namespace {

constexpr std::size_t kMostBindings = 64;

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

OrtGraphs::OrtGraphs(const Sizes& sizes, std::string provider, int threads, std::map<int, Ort::Session> sessions)
    : sizes_(sizes),
      provider_(std::move(provider)),
      threads_(threads),
      sessions_(std::move(sessions)),
      memory_(Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault)) {}

Status OrtGraphs::check() const {
  std::set<std::string> wanted_in{"input_ids", "attention_mask", "position_ids_cos", "position_ids_sin"};
  std::set<std::string> wanted_out{"logits"};
  for (int i = 0; i < sizes_.layers; ++i) {
    for (const char* kind : {"key", "value"}) {
      wanted_in.insert(layer_name(kind, i, "in"));
      wanted_out.insert(layer_name(kind, i, "out"));
    }
  }
  if (sizes_.has_hidden) wanted_out.insert("hidden");
  for (const auto& entry : sessions_) {
    const Ort::Session& session = entry.second;
    const std::vector<std::string> inputs = session.GetInputNames(), outputs = session.GetOutputNames();
    if (std::set<std::string>(inputs.begin(), inputs.end()) != wanted_in ||
        std::set<std::string>(outputs.begin(), outputs.end()) != wanted_out) {
      return Error{"bad_graph", "a graph's inputs or outputs are not those of the bundle's sizes",
                   "export it again"};
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto wanted =
          inputs[i] == "input_ids" ? ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 : ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
      const Ort::TypeInfo info = session.GetInputTypeInfo(i);
      if (info.GetTensorTypeAndShapeInfo().GetElementType() != wanted) {
        return Error{"bad_graph", "the graph's input " + inputs[i] + " has a number type this runner does not feed",
                     "export it again with float32 inputs and outputs"};
      }
    }
  }
  return std::nullopt;
}

Ort::Session& OrtGraphs::session(int width) {
  const auto own = sessions_.find(width);
  return own != sessions_.end() ? own->second : sessions_.at(0);
}

Ort::IoBinding OrtGraphs::bind(Ort::Session& session, int width, Cache& cache, Pass& pass) {
  Ort::IoBinding binding(session);
  const std::int64_t t = width, c = cache.capacity(), heads = sizes_.kv_heads, dim = sizes_.head_dim;
  const auto tensor = [&](float* data, const Shape& shape) {
    return Ort::Value::CreateTensor<float>(memory_, data, volume(shape), shape.data(), shape.size());
  };
  const Shape ids{1, t};
  binding.BindInput("input_ids",
                    Ort::Value::CreateTensor<std::int32_t>(memory_, static_cast<std::int32_t*>(pass.ids.data()),
                                                           volume(ids), ids.data(), 2));
  binding.BindInput("attention_mask", tensor(pass.mask.floats(), {1, 1, t, c + t}));
  binding.BindInput("position_ids_cos", tensor(pass.cos.floats(), {1, 1, t, dim / 2}));
  binding.BindInput("position_ids_sin", tensor(pass.sin.floats(), {1, 1, t, dim / 2}));
  binding.BindOutput("logits", tensor(pass.logits.floats(), {1, t, sizes_.vocab}));
  if (sizes_.has_hidden) binding.BindOutput("hidden", tensor(pass.hidden.floats(), {1, t, sizes_.hidden}));
  for (int i = 0; i < sizes_.layers; ++i) {
    const auto at = static_cast<std::size_t>(i);
    binding.BindInput(layer_name("key", i, "in").c_str(), tensor(cache.keys(i), {heads, 1, dim, c}));
    binding.BindInput(layer_name("value", i, "in").c_str(), tensor(cache.values(i), {heads, 1, c, dim}));
    binding.BindOutput(layer_name("key", i, "out").c_str(), tensor(pass.keys[at].floats(), {heads, 1, dim, t}));
    binding.BindOutput(layer_name("value", i, "out").c_str(), tensor(pass.values[at].floats(), {heads, 1, t, dim}));
  }
  return binding;
}

Result<double> OrtGraphs::run(int width, Cache& cache, Pass& pass) {
  try {
    if (cache_epoch_ != cache.epoch() || pass_epoch_ != pass.epoch() || bindings_.size() >= kMostBindings) {
      bindings_.clear();
      cache_epoch_ = cache.epoch();
      pass_epoch_ = pass.epoch();
    }
    Ort::Session& own = session(width);
    auto binding = bindings_.find(width);
    if (binding == bindings_.end()) binding = bindings_.emplace(width, bind(own, width, cache, pass)).first;
    const Ort::RunOptions options;
    const auto start = std::chrono::steady_clock::now();
    own.Run(options, binding->second);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  } catch (const Ort::Exception& problem) {
    bindings_.clear();
    return runtime_error("pass_failed", "the pass failed in ONNX Runtime", problem, "load the model again");
  }
}

}  // namespace hexgraft
