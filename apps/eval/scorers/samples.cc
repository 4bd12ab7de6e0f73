#include "apps/eval/scorers/samples.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/base/check.h"
#include "src/base/ratio.h"
#include "src/base/size32.h"

namespace mneme::eval {

double pass_at_k(int n, int c, int k) {
  MNEME_CHECK(c >= 0 && c <= n && k >= 1 && k <= n, "pass@{} of {} right among {}", k, c, n);
  if (n - c < k) return 1;
  double none = 1;
  for (int i = n - c + 1; i <= n; ++i) none *= 1.0 - ratio(k, i);
  return 1 - none;
}

double average_of_runs(std::span<const double> runs) {
  return ratio(std::accumulate(runs.begin(), runs.end(), 0.0), runs.size());
}

double trimmed_average_of_runs(std::span<const double> runs) {
  if (runs.size() < 3) return average_of_runs(runs);
  const auto [low, high] = std::minmax_element(runs.begin(), runs.end());
  const double sum = std::accumulate(runs.begin(), runs.end(), 0.0) - *low - *high;
  return ratio(sum, runs.size() - 2);
}

Interval mean_interval(std::span<const double> scores) {
  if (scores.empty()) return {};
  const double n = size32(scores);
  const double mean = std::accumulate(scores.begin(), scores.end(), 0.0) / n;
  double squares = 0;
  for (double s : scores) squares += (s - mean) * (s - mean);
  return {mean, squares == 0 ? std::min(1.0, 3 / n) : 1.96 * std::sqrt(squares / std::max(1.0, n - 1) / n)};
}

}  // namespace mneme::eval
