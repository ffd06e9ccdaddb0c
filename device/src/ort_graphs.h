// Graphs run by ONNX Runtime: one session for a symbolic file, one per width for static ones.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "graphs.h"
#include "ort.h"
#include "sizes.h"

namespace hexgraft {

class OrtGraphs : public Graphs {
 public:
  // `sessions` by width; the one at 0 serves every width that has none of its own.
  OrtGraphs(const Sizes& sizes, std::string provider, int threads, std::map<int, Ort::Session> sessions);

  // Refuse graphs whose inputs or outputs are not the contract's.
  Status check() const;
  Result<double> run(int width, Cache& cache, Pass& pass) override;
  std::string provider() const override { return provider_; }
  int threads() const override { return threads_; }

 private:
  Ort::IoBinding bind(Ort::Session& session, int width, Cache& cache, Pass& pass);
  Ort::Session& session(int width);

  Sizes sizes_;
  std::string provider_;
  int threads_;
  std::map<int, Ort::Session> sessions_;
  std::map<int, Ort::IoBinding> bindings_;  // by width, for the epochs below
  std::uint64_t cache_epoch_ = 0, pass_epoch_ = 0;
  Ort::MemoryInfo memory_{nullptr};
};

}  // namespace hexgraft
