// A set of graphs that computes passes, whatever runs them.
#pragma once

#include <string>

#include "cache.h"
#include "pass.h"
#include "result.h"

namespace hexgraft {

class Graphs {
 public:
  virtual ~Graphs() = default;
  // One pass at a width the model offers, from `pass`'s inputs and the cache to `pass`'s outputs. Seconds inside
  // the runtime.
  virtual Result<double> run(int width, Cache& cache, Pass& pass) = 0;
  virtual std::string provider() const = 0;
  virtual int threads() const = 0;
  // Until the next pass nobody waits: give back a raised clock, where there is one.
  virtual void rest() {}
  virtual bool resting() const { return false; }
};

}  // namespace hexgraft
