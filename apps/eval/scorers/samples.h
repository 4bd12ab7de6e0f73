// Several answers to one question.
#pragma once

#include <span>

namespace mneme::eval {

// Mean of runs over all questions, one score a run; trimmed: without the best and the worst (from three runs on).
double average_of_runs(std::span<const double> runs);
double trimmed_average_of_runs(std::span<const double> runs);

// Mean of scores and the half width of its 95 % interval. With all scores alike the deviation says nothing: the rule of
// three bounds it by 3/n. Nothing: zeros.
struct Interval {
  double mean = 0, half_width = 0;
};
Interval mean_interval(std::span<const double> scores);

}  // namespace mneme::eval
