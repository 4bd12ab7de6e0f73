#include "reference/methods/positions_ref.h"

#include <cmath>
#include <functional>
#include <numeric>

#include "src/tensor/half.h"
#include "src/tensor/half_value.h"

namespace mneme {

std::vector<double> numbers(const std::byte* from, std::int32_t n, DType dtype) {
  std::vector<double> v(n);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = load_half(from, i, dtype);
  return v;
}

std::vector<double> rotated(const std::vector<double>& v, std::int32_t by, const RopeTable& rope) {
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

double dot_at_position(const Plan& plan, const RopeTable& rope, const PositionedQuery& query,
                       const std::vector<double>& key, std::int32_t t) {
  // Dot products dominate the contract tests' time: only rotated keys are copied.
  const auto with_query = [&](const std::vector<double>& k) {
    return std::inner_product(k.begin(), k.end(), query.q, 0.0, std::plus<>(), [](double x, float y) { return x * y; });
  };
  if (plan.key_basis == KeyBasis::kPreRope) {
    if (t >= query.local_from && query.position - t < plan.rules.recent) {
      std::vector<double> k = rotated(key, t, rope);
      const DType dtype = plan.shape.kv_dtype;
      for (double& x : k) x = half_value(half_bits(static_cast<float>(x), dtype), dtype);
      return with_query(k);
    }
  } else if (!plan.remote_position || query.everything || t >= plan.rules.sink) {
    return with_query(key);
  }
  const std::vector<double> q = rotated({query.q, query.q + key.size()}, *plan.remote_position - query.position, rope);
  return std::inner_product(q.begin(), q.end(), key.begin(), 0.0);
}

}  // namespace mneme
