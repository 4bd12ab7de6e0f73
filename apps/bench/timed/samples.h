// Figures of repeated measurements.
#pragma once

#include <vector>

namespace mneme {

struct Quantiles {
  double median = 0, p10 = 0, p99 = 0, mean = 0, deviation = 0, least = 0;
};

// Linear interpolation between samples. All zero without samples.
Quantiles quantiles_of(std::vector<double> samples);
// The sample at this share of the sorted ones. Requires  at least one sample.
double quantile(const std::vector<double>& sorted, double share);
// Index of the median. Requires  at least one sample.
std::size_t median_index(const std::vector<double>& samples);

}  // namespace mneme
