// How alike two orders of the same things are.
#pragma once

#include <vector>

namespace mneme {

// Spearman's rank correlation: 1 for the same order, -1 for the reverse. Equal values share the mean of their ranks.
// NaN  fewer than two values, all of one side equal, or a NaN among them.   Requires  as many of a as of b.
double spearman(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace mneme
