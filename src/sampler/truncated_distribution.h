// Which tokens may be drawn, and how likely each is: temperature, top-k, top-p, min-p, in this order.
//
//   w[i] = exp((logit[i] - max) / temperature)            the likeliest token has weight 1
//   top-k   the k largest logits
//   top-p   of these, in falling order, the fewest whose weights reach top_p of the weight of all of these; at least
//   one min-p   of these, the tokens with w >= min_p
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

// In order of id. Sorts all tokens: the specification.
//
// Requires  temperature > 0; max, the largest logit, is finite.
std::vector<TokenWeight> survivors_ref(std::span<const float> logits, const SamplingOptions& options);

// The same by partial selection: cost grows with the vocabulary, sorting only with what is close to the cut.
class Survivors {
 public:
  // Requires  as survivors_ref; `max` is the largest logit.
  void select(std::span<const float> logits, float max, const SamplingOptions& options);

  // Ids of the survivors, ascending, and the weight of any of them.
  std::span<const std::int32_t> tokens() const { return ids_; }
  float weight(std::int32_t token) const { return weights_[static_cast<std::size_t>(token)]; }
  // The survivor in whose stretch of [0, 1) u falls, when every one has a stretch of its weight's length, in order of
  // id.
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
