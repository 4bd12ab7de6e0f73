#include "apps/eval/scorers/samples.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/base/ratio.h"
#include "src/base/size32.h"

namespace mneme::eval {

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
