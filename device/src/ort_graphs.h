// Graphs run by ONNX Runtime: one session for a symbolic file, one or a chain of parts per size for static ones.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "graphs.h"
#include "ort.h"
#include "sizes.h"

namespace hexgraft {

class OrtGraphs : public Graphs {
 public:
  using Chain = std::vector<Ort::Session>;

  using Chains = std::map<std::pair<int, int>, Chain>;

  // `chains` by width and capacity, parts in order; the one at (0, 0) serves every size that has none of its own.
  OrtGraphs(const Sizes& sizes, std::string provider, int threads, Chains chains);

  // Refuse graphs whose inputs or outputs are not the contract's.
  Status check() const;
  Result<double> run(int width, Cache& cache, Pass& pass) override;
  std::string provider() const override { return provider_; }
  int threads() const override { return threads_; }
  // The NPU's power mode during passes; without one there is nothing to give back between them.
  void set_performance(std::string mode) { performance_ = std::move(mode); }
  void rest() override;
  bool resting() const override { return resting_; }

 private:
  using Tensors = std::map<std::string, Ort::Value>;

  Status check_chain(int width, int capacity, const Chain& chain) const;
  std::vector<Ort::IoBinding> bind(Chain& chain, int width, Cache& cache, Pass& pass);
  // The contract's tensors by name, over the buffers of cache and pass.
  Tensors tensors(int width, Cache& cache, Pass& pass) const;
  // Ask the provider for a power mode; false if it takes none at run time.
  bool set_power(const std::string& mode);
  Chain& chain(int width, int capacity);

  Sizes sizes_;
  std::string provider_;
  int threads_;
  Chains chains_;
  std::map<int, std::vector<Ort::IoBinding>> bindings_;  // by width, for the epochs below
  std::uint64_t cache_epoch_ = 0, pass_epoch_ = 0;
  Ort::MemoryInfo memory_{nullptr};
  std::string performance_;
  bool resting_ = false;
};

}  // namespace hexgraft
