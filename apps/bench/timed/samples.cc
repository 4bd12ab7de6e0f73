#include "apps/bench/timed/samples.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "src/base/ratio.h"

namespace mneme {

double quantile(const std::vector<double>& sorted, double share) {
  const double place = share * real(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - real(below)) * (sorted[above] - sorted[below]);
}

Quantiles quantiles_of(std::vector<double> samples) {
  Quantiles q;
  if (samples.empty()) return q;
  std::sort(samples.begin(), samples.end());
  q.median = quantile(samples, 0.5);
  q.p10 = quantile(samples, 0.1);
  q.p99 = quantile(samples, 0.99);
  q.least = samples.front();
  for (const double s : samples) q.mean += ratio(s, samples.size());
  for (const double s : samples) q.deviation += (s - q.mean) * (s - q.mean);
  q.deviation = samples.size() > 1 ? std::sqrt(ratio(q.deviation, samples.size() - 1)) : 0.0;
  return q;
}

std::size_t median_index(const std::vector<double>& samples) {
  std::vector<std::size_t> order(samples.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return samples[a] < samples[b]; });
  return order[(order.size() - 1) / 2];
}

}  // namespace mneme
