#include "rows.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace hexgraft {
namespace {

constexpr std::size_t kBlock = 128;
constexpr std::size_t kLanes = 16;

// The largest of `count` floats, lane by lane so that compilers vectorise it. `nan` turns true once one is met.
float block_max(const float* x, std::size_t count, bool& nan) {
  float lanes[kLanes];
  unsigned unordered[kLanes] = {};
  std::fill(lanes, lanes + kLanes, -HUGE_VALF);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) {
      const float v = x[i + j];
      lanes[j] = v > lanes[j] ? v : lanes[j];
      unordered[j] |= static_cast<unsigned>(v != v);
    }
  }
  float best = -HUGE_VALF;
  for (; i < count; ++i) {
    best = std::max(best, x[i]);
    nan |= x[i] != x[i];
  }
  for (std::size_t j = 0; j < kLanes; ++j) {
    best = std::max(best, lanes[j]);
    nan |= unordered[j] != 0;
  }
  return best;
}

struct Candidate {
  float logit;
  std::int32_t id;
  bool operator<(const Candidate& other) const {
    return logit > other.logit || (logit == other.logit && id < other.id);
  }
};

}  // namespace

bool top_tokens(const float* row, std::size_t vocab, std::size_t k, std::int32_t* ids, float* logits) {
  const std::size_t blocks = (vocab + kBlock - 1) / kBlock;
  std::vector<float> maxima(blocks);
  bool nan = false;
  for (std::size_t b = 0; b < blocks; ++b) {
    maxima[b] = block_max(row + b * kBlock, std::min(kBlock, vocab - b * kBlock), nan);
  }
  if (nan || !std::isfinite(*std::max_element(maxima.begin(), maxima.end()))) return false;
  // The k-th largest block maximum is a bound that at least k tokens reach, so only those are sorted.
  float bound = -HUGE_VALF;
  if (k < blocks) {
    std::vector<float> order = maxima;
    std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k) - 1, order.end(),
                     std::greater<>());
    bound = order[k - 1];
  }
  std::vector<Candidate> best;
  for (std::size_t b = 0; b < blocks; ++b) {
    if (maxima[b] < bound) continue;
    for (std::size_t i = b * kBlock; i < std::min(vocab, (b + 1) * kBlock); ++i) {
      if (row[i] >= bound) best.push_back({row[i], static_cast<std::int32_t>(i)});
    }
  }
  std::partial_sort(best.begin(), best.begin() + static_cast<std::ptrdiff_t>(k), best.end());
  for (std::size_t i = 0; i < k; ++i) {
    ids[i] = best[i].id;
    logits[i] = best[i].logit;
  }
  return true;
}

}  // namespace hexgraft
