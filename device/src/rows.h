// Orderings of logits that are the same everywhere: a larger logit first, the lower token id first among equals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hexgraft {

// Write the k best ids of `row` [vocab] and their logits in the total order (-logit, id), without sorting the row.
// Needs 1 <= k <= vocab. Returns false where the row holds a NaN or its largest logit is not finite.
bool top_tokens(const float* row, std::size_t vocab, std::size_t k, std::int32_t* ids, float* logits);

// log of the summed exponentials of a finite row, summed in double.
double log_sum_exp(const float* row, std::size_t vocab);

}  // namespace hexgraft
