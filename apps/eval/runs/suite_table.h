// Records of a suite as scores with intervals, and as tables, JSON and a plot.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/eval/runs/papers.h"
#include "apps/eval/runs/suite_record.h"
#include "apps/eval/scorers/samples.h"

namespace mneme::eval {

// One method on one column (a task, a group of questions) at one length.
struct SuiteCell {
  std::string column, method;
  std::int64_t length = 0;
  std::vector<double> scores;       // one a question: the mean of its samples, 0 to 1
  std::vector<double> runs;         // one a sample number: the mean over questions; with several samples
  std::int64_t solved = 0;          // questions with a sample of score 1
  std::vector<double> differences;  // to `full` on the same questions
  std::int64_t truncated = 0, answer_tokens = 0;
  double log_likelihood = 0;
  std::int64_t scored_tokens = 0;
  double prefill_seconds = 0, seconds = 0;
  MethodCost cost;

  Interval interval() const { return mean_interval(scores); }
};

struct SuiteSummary {
  std::vector<SuiteCell> tasks;   // by first appearance of length, task, method
  std::vector<SuiteCell> groups;  // the same by groups of questions
};

SuiteSummary summarise_suite(const std::vector<SuiteRecord>& records);

// Tables for each length: scores (in percent, with the half width of the 95 % interval), then groups; perplexities of
// suites that have no answers; what a step reads.
std::string suite_markdown(const SuiteSummary& summary, TableLayout layout);
nlohmann::json suite_json(const SuiteSummary& summary);
// Mean score against KiB read a step: a panel for each length.
std::string suite_svg(const SuiteSummary& summary);

}  // namespace mneme::eval
