#include "src/attention/positions_ref.h"

#include <cmath>
#include <numeric>

#include "src/tensor/half.h"

namespace mneme {

std::vector<double> turned(const std::vector<double>& v, std::int32_t by, const RopeTable& rope) {
  std::vector<double> out = v;
  const std::size_t half = v.size() / 2;
  for (std::size_t i = 0; i < half; ++i) {
    const bool halves = rope.pairs == RopePairs::kHalves;
    const std::size_t a = halves ? i : 2 * i, b = halves ? i + half : 2 * i + 1;
    const double angle = by * rope.inv_freq[i];
    out[a] = v[a] * std::cos(angle) - v[b] * std::sin(angle);
    out[b] = v[b] * std::cos(angle) + v[a] * std::sin(angle);
  }
  return out;
}

double placed_product(const Plan& plan, const RopeTable& rope, const PlacedQuery& query, const std::vector<double>& key,
                      std::int32_t t) {
  std::vector<double> q(query.q, query.q + key.size()), k = key;
  if (plan.key_basis == KeyBasis::kRaw) {
    if (t >= query.near_from && query.position - t < plan.rules.recent) {
      k = turned(k, t, rope);
      for (double& x : k) {
        const auto f = static_cast<float>(x);
        x = static_cast<double>(plan.shape.kv_dtype == DType::kBF16 ? static_cast<float>(bf16(f))
                                                                    : static_cast<float>(f16(f)));
      }
    } else {
      q = turned(q, *plan.far_position - query.position, rope);
    }
  } else if (plan.far_position && !query.everything && t < plan.rules.sink) {
    q = turned(q, *plan.far_position - query.position, rope);
  }
  return std::inner_product(q.begin(), q.end(), k.begin(), 0.0);
}

}  // namespace mneme
