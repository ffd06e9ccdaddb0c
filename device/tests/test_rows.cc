// Top-k and log-sum-exp against sorting and double precision, with ties, infinities and NaN.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "check.h"
#include "rows.h"

using namespace hexgraft;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<std::int32_t> sorted_ids(const std::vector<float>& row) {
  std::vector<std::int32_t> ids(row.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) {
    return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)];
  });
  return ids;
}

void random_rows() {
  std::mt19937 random(3);
  for (const std::size_t vocab : {1, 2, 15, 16, 17, 127, 128, 129, 300, 1000, 49152}) {
    for (const int levels : {2, 7, 1 << 20}) {  // few levels: many ties
      std::vector<float> row(vocab);
      for (float& x : row) x = static_cast<float>(random() % static_cast<unsigned>(levels)) / 16.0F - 4.0F;
      const std::vector<std::int32_t> expected = sorted_ids(row);
      for (const std::size_t k : {std::size_t{1}, std::size_t{2}, std::size_t{9}, vocab / 2 + 1, vocab}) {
        if (k > vocab) continue;
        std::vector<std::int32_t> ids(k);
        std::vector<float> logits(k);
        CHECK(top_tokens(row.data(), vocab, k, ids.data(), logits.data()));
        CHECK(std::equal(ids.begin(), ids.end(), expected.begin()));
        for (std::size_t i = 0; i < k; ++i) CHECK(logits[i] == row[static_cast<std::size_t>(ids[i])]);
      }
    }
  }
}

void not_finite() {
  std::vector<std::int32_t> ids(4);
  std::vector<float> logits(4);
  for (const std::size_t place : {0, 5, 63, 129, 199}) {
    std::vector<float> row(200, 1.0F);
    row[place] = std::nanf("");
    CHECK(!top_tokens(row.data(), row.size(), 1, ids.data(), logits.data()));
    row[place] = kInfinity;
    CHECK(!top_tokens(row.data(), row.size(), 4, ids.data(), logits.data()));
    row[place] = -kInfinity;
    CHECK(top_tokens(row.data(), row.size(), 4, ids.data(), logits.data()));
    CHECK(logits[3] == 1.0F);
  }
  const std::vector<float> none(200, -kInfinity);
  CHECK(!top_tokens(none.data(), none.size(), 1, ids.data(), logits.data()));
}

void log_sums() {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 6);
  for (const std::size_t vocab : {1, 7, 128, 300, 49152}) {
    std::vector<float> row(vocab);
    for (float& x : row) x = normal(random);
    if (vocab > 100) row[99] = -kInfinity;
    double sum = 0;
    for (const float x : row) sum += std::exp(static_cast<double>(x));
    CHECK(std::abs(log_sum_exp(row.data(), vocab) - std::log(sum)) < 1e-6);
  }
  const std::vector<float> far{1e30F, -1e30F};
  CHECK(log_sum_exp(far.data(), 2) == static_cast<double>(1e30F));
}

}  // namespace

int main() {
  random_rows();
  not_finite();
  log_sums();
  return REPORT();
}
