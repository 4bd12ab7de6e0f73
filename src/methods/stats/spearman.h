// Rank correlation.
#pragma once

#include <vector>

namespace mneme {

// Spearman's rank correlation: 1 for the same order, -1 for the reverse. Equal values share the mean of their ranks.
// NaN  fewer than two values, all values of one side equal, or a NaN value.   Requires  a and b have the same size.
double spearman(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace mneme
