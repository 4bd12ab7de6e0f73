// Figures of repeated measurements.
#pragma once

#include <vector>

namespace mneme {

struct Quantiles {
  double median = 0, p10 = 0, p99 = 0, mean = 0, deviation = 0, least = 0;
};

// Between two samples, values lie on the line between them. All zero for no samples.
Quantiles quantiles_of(std::vector<double> samples);
// Which of them is the median. Requires  at least one.
std::size_t median_index(const std::vector<double>& samples);

}  // namespace mneme
