#include "src/methods/stats/spearman.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "src/base/check.h"
#include "src/base/ratio.h"

namespace mneme {
namespace {

std::vector<double> ranks(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> rank(values.size());
  for (std::size_t i = 0; i < order.size();) {
    std::size_t j = i;
    while (j < order.size() && values[order[j]] == values[order[i]]) ++j;
    for (std::size_t k = i; k < j; ++k) rank[order[k]] = ratio(i + j - 1, 2);
    i = j;
  }
  return rank;
}

}  // namespace

double spearman(const std::vector<double>& a, const std::vector<double>& b) {
  MNEME_CHECK(a.size() == b.size(), "{} values and {}", a.size(), b.size());
  const auto bad = [](double x) { return std::isnan(x); };
  if (a.size() < 2 || std::any_of(a.begin(), a.end(), bad) || std::any_of(b.begin(), b.end(), bad))
    return std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> x = ranks(a), y = ranks(b);
  const double mean = ratio(a.size() - 1, 2);
  double xy = 0, xx = 0, yy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean);
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
  }
  return xy / std::sqrt(xx * yy);  // 0 / 0 where all values of one side are equal
}

}  // namespace mneme
