// Which experts a row goes to.
#pragma once

#include <cstdint>
#include <span>

namespace mneme {

struct RoutedExpert {
  std::int32_t expert;
  float share;
};

// The n_used experts with the largest logits, and the softmax of each: over all logits, or over theirs alone where
// `normalise`.   logits [experts] f32; out [n_used], by descending logit
//
// Ties  the lower number. NaN  gives NaN shares.
// Source  Qwen3MoeTopKRouter of transformers
void route(std::span<const float> logits, std::int64_t n_used, bool normalise, std::span<RoutedExpert> out);

}  // namespace mneme
