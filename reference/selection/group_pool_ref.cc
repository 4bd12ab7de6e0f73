#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "reference/sums.h"
#include "src/base/check.h"
#include "src/base/size32.h"
#include "src/selection/pool/group_pool.h"

namespace mneme {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Log-softmax in place. Units that are left out are -inf.
void log_softmax(std::vector<double>& x) {
  const double lse = log_sum_exp(x);
  for (double& v : x) v = lse == -kInf ? -kInf : v - lse;
}

}  // namespace

void group_pool_ref(float* scores, std::int64_t score_stride, std::int32_t group, std::int64_t n, Pool pool,
                    float alpha, float* pooled) {
  MNEME_CHECK(group >= 1, "group {}", group);
  if (n == 0) return;
  const bool log_domain = pool == Pool::kMaxS || pool == Pool::kMeanS;
  const auto score = [&](std::int64_t h, std::int64_t u) { return scores[h * score_stride + u]; };
  std::vector<bool> nan(n);
  for (std::int64_t h = 0; h < group; ++h)
    for (std::int64_t u = 0; u < n; ++u)
      if (std::isnan(score(h, u))) nan[u] = true;

  std::vector<std::vector<double>> heads;
  for (std::int64_t h = 0; h < group; ++h) {
    std::vector<double> row(n);
    for (std::size_t u = 0; u < row.size(); ++u) {
      row[u] = score(h, u);
      if (!log_domain) continue;
      const double largest = std::numeric_limits<float>::max();
      row[u] = nan[u] ? -kInf : std::min(alpha * row[u], largest);
    }
    if (log_domain) log_softmax(row);
    heads.push_back(row);
  }

  for (std::size_t u = 0; u < nan.size(); ++u) {
    std::vector<double> unit;
    for (const auto& row : heads) unit.push_back(row[u]);
    double sum = 0.0;
    for (const double x : unit) sum += x;
    double result = *std::max_element(unit.begin(), unit.end());
    if (pool == Pool::kMeanQk) result = sum / group;
    if (pool == Pool::kMeanS) result = log_sum_exp(unit);
    pooled[u] = nan[u] ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(result);
  }
}

float missing_mass_ref(std::span<const float> scores, float scale, std::span<const std::int32_t> wanted,
                       std::span<const std::int32_t> there) {
  if (wanted.empty()) return 0.0f;
  std::vector<double> weights;
  for (const float x : scores) {
    const double scaled = scale * double{x};
    weights.push_back(std::isnan(x) ? -kInf : std::min(scaled, double{std::numeric_limits<float>::max()}));
  }
  const double top = *std::max_element(weights.begin(), weights.end());
  double mass = 0.0, all = 0.0;
  bool missing = false;
  for (std::size_t u = 0; u < weights.size(); ++u) {
    const auto has = [&](std::span<const std::int32_t> units) {
      return std::find(units.begin(), units.end(), count32(u)) != units.end();
    };
    const bool counts = has(wanted) && !has(there);
    missing = missing || counts;
    const double weight = top == -kInf ? 0.0 : std::exp(weights[u] - top);
    mass += counts ? weight : 0.0;
    all += weight;
  }
  if (!missing) return 0.0f;
  return static_cast<float>(all == 0.0 ? 1.0 : mass / all);
}

}  // namespace mneme
