// The build lets compilers assume here that floating point raises no traps, or they would not vectorise the clamp.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "rows.h"

namespace hexgraft {
namespace {

constexpr std::size_t kLanes = 16;

float largest(const float* x, std::size_t count) {
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, -HUGE_VALF);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
  }
  float best = *std::max_element(lanes, lanes + kLanes);
  for (; i < count; ++i) best = std::max(best, x[i]);
  return best;
}

// exp for x <= 0 in single precision (relative error below 2e-7): 2^n by the exponent field, the rest by a
// polynomial (Cephes' coefficients). Branchless, so that a row of 49152 costs microseconds, not milliseconds.
inline float exp_nonpositive(float x) {
  x = x < -87.0F ? -87.0F : x;
  const auto whole = static_cast<std::int32_t>(x * 1.44269504F - 0.5F);  // truncation rounds: x is not positive
  const auto n = static_cast<float>(whole);
  const float r = (x - n * 0.693359375F) - n * -2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const std::int32_t bits = (whole + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return p * scale;
}

}  // namespace

double log_sum_exp(const float* row, std::size_t vocab) {
  const float top = largest(row, vocab);
  double sums[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= vocab; i += kLanes) {
    float terms[kLanes];
    for (std::size_t j = 0; j < kLanes; ++j) terms[j] = exp_nonpositive(row[i + j] - top);
    for (std::size_t j = 0; j < kLanes; ++j) sums[j] += static_cast<double>(terms[j]);
  }
  double sum = 0;
  for (; i < vocab; ++i) sum += static_cast<double>(exp_nonpositive(row[i] - top));
  for (const double lane : sums) sum += lane;
  return static_cast<double>(top) + std::log(sum);
}

}  // namespace hexgraft
