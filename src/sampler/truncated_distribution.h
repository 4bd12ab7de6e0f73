// Truncated distribution: temperature, top-k, top-p, min-p, in this order.
//
//   w[i] = exp((logit[i] - max) / temperature)            the likeliest token has weight 1
//   top-k   the k largest logits
//   top-p   of these, in descending order, the fewest whose weights reach top_p of their total weight; at least one
//   min-p   of these, the tokens with w >= min_p
//
// Ties  larger logit first, then the smaller id.   NaN  as -inf: weight 0.
// Shares are compared with a slack of 1e-6, the rounding of f32: three of ten equal tokens reach a top_p of 0.3.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mneme/options.h"

namespace mneme {

inline constexpr double kShareSlack = 1e-6;

struct TokenWeight {
  std::int32_t token = -1;
  double weight = 0;
};

// The specification: sorts all tokens. Returns them in order of id.
//
// Requires  temperature > 0; max, the largest logit, is finite.
std::vector<TokenWeight> truncated_distribution_ref(std::span<const float> logits, const SamplingOptions& options);

// The same by partial selection: cost is linear in the vocabulary; only tokens near the threshold are sorted.
class TruncatedDistribution {
 public:
  // Requires  as truncated_distribution_ref; `max` is the largest logit.
  void select(std::span<const float> logits, float max, const SamplingOptions& options);

  // Ids of the truncated distribution, ascending, and the weight of any of them.
  std::span<const std::int32_t> tokens() const { return ids_; }
  float weight(std::int32_t token) const { return weights_[token]; }
  // Inverse CDF: the token whose interval of [0, 1) contains u, intervals in order of id and as long as their weights'
  // shares.
  std::int32_t at(double u) const;

 private:
  void keep_top_k(std::span<const float> logits, std::size_t k);
  void keep_top_p(std::span<const float> logits, float max, float temperature, double share);

  std::vector<std::int32_t> ids_;
  std::vector<float> weights_;  // by token
  std::vector<std::int32_t> scratch_;
  std::vector<double> bins_;
};

}  // namespace mneme
