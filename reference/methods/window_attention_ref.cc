#include "reference/methods/window_attention_ref.h"

#include <algorithm>
#include <cmath>

#include "src/base/size32.h"
#include "src/tensor/half.h"

namespace mneme {
std::vector<std::int32_t> window_tokens(const Plan& plan, std::int32_t layer, std::int32_t p, std::int32_t begin,
                                        std::int32_t end, std::span<const std::int32_t> units) {
  std::vector<bool> taken(p + 1, false);
  const auto take = [&](std::int32_t from, std::int32_t to) {
    for (std::int32_t t = std::max(from, 0); t < std::min(to, p + 1); ++t) taken[t] = true;
  };
  if (plan.dense_layer(layer) || end <= plan.rules.budget) {
    take(0, p + 1);
  } else {
    take(0, plan.rules.sink);
    for (std::int32_t u : units) take(u * plan.rules.unit_tokens, (u + 1) * plan.rules.unit_tokens);
    take(plan.selects() ? region_at(plan.rules, begin + 1).recent_from : p + 1 - plan.rules.recent, p + 1);
  }
  std::vector<std::int32_t> tokens;
  for (std::int32_t t = 0; t <= p; ++t)
    if (taken[t]) tokens.push_back(t);
  return tokens;
}

void attend_windows_ref(const Plan& plan, const RopeTable& rope, std::int32_t layer, const SequenceCache& cache,
                        std::int32_t first, const float* q, float* out) {
  const std::int32_t d = plan.shape.head_dim, group = plan.shape.group(), rows = plan.window->rows;
  const DType dtype = cache.shape().dtype;
  std::vector<std::vector<std::vector<double>>> keys, values;  // by KV head and token
  for (std::int32_t m = 0; m < plan.shape.n_kv_heads; ++m) {
    keys.emplace_back();
    values.emplace_back();
    for (std::int32_t t = 0; t < cache.length(); ++t) {
      keys.back().push_back(numbers(cache.token(layer, m, t), d, dtype));
      values.back().push_back(numbers(cache.token(layer, m, t) + 2 * d, d, dtype));
    }
  }
  for (std::int32_t p = first; p < cache.length(); ++p) {
    std::int32_t begin = std::max(first, p / rows * rows), end = std::min(cache.length(), (p / rows + 1) * rows);
    if (p < plan.rules.budget) end = std::min(end, plan.rules.budget);
    if (p >= plan.rules.budget) begin = std::max(begin, plan.rules.budget);
    const std::vector<std::int32_t> tokens = window_tokens(plan, layer, p, begin, end, {});
    const bool everything = size32(tokens) == p + 1 && (plan.dense_layer(layer) || end <= plan.rules.budget);
    for (std::int32_t h = 0; h < plan.shape.n_heads; ++h, q += d, out += d) {
      const std::size_t m = h / group;
      std::vector<double> weights, sum(d, 0.0);
      double total = 0;
      for (std::int32_t t : tokens)
        weights.push_back(dot_at_position(plan, rope, {q, p, everything}, keys[m][t], t) *
                          plan.shape.attention().scale);
      const double top = *std::max_element(weights.begin(), weights.end());
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const double w = std::exp(weights[i] - top);
        const std::vector<double>& v = values[m][tokens[i]];
        for (std::size_t c = 0; c < v.size(); ++c) sum[c] += w * v[c];
        total += w;
      }
      for (std::size_t c = 0; c < sum.size(); ++c) out[c] = static_cast<float>(sum[c] / total);
    }
  }
}

}  // namespace mneme
