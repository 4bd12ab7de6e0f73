// Sums over vectors of doubles that several specifications take.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace mneme {

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// log(sum(exp(x))); x has at least one element. Infinite where the largest element is.
inline double log_sum_exp(const std::vector<double>& x) {
  const double top = *std::max_element(x.begin(), x.end());
  if (std::isinf(top)) return top;
  double sum = 0.0;
  for (const double v : x) sum += std::exp(v - top);
  return top + std::log(sum);
}

}  // namespace mneme
