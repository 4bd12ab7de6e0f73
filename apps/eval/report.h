// Turns records into a table, JSON and a plot.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/eval/runner.h"
#include "src/base/ratio.h"

namespace mneme::eval {

// One method on one (task, length), over all samples.
struct CellSummary {
  std::string task;
  std::int64_t length = 0;
  std::string method;
  std::int64_t n = 0, right = 0;  // answers
  // Exact match minus that of `full` on the same questions, in points, with the half width of its 95 % interval.
  // n_pairs = 0: no `full`.
  std::int64_t n_pairs = 0;
  double difference = 0, half_width = 0;
  double log_likelihood = 0;
  std::int64_t scored_tokens = 0;
  MethodCost cost;

  double exact() const { return percent(right, n); }
};

// Keys, values and index that a step of one sequence reads.
double kib_per_step(const MethodCost& cost);

// In the order in which tasks, lengths and methods first appear.
std::vector<CellSummary> summarise(const std::vector<CellRecord>& records);

std::string table(const std::vector<CellSummary>& cells);
// Evenness of scores by layer, for methods that select for a whole layer: mean perplexity of softmax(scores) in per
// cent of that of equal scores. Empty without such a method.
std::string perplexity_table(const std::vector<CellSummary>& cells);
nlohmann::json to_json(const CellSummary& cell);

// A record as one line of a run's file, and its parser. Errors  kFormat: malformed line.
nlohmann::json to_json(const CellRecord& record);
nlohmann::json cost_json(const MethodCost& cost);
// Errors  those of nlohmann::json.
MethodCost cost_from_json(const nlohmann::json& cost);
// Rows as Markdown; columns behind the first `fixed` that say "-" everywhere are left out.
std::string markdown_table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows,
                           std::size_t fixed);
CellRecord record_from_json(const nlohmann::json& line);

// Exact match (mean over tasks) against bytes of keys, values and index read per step: one point per method, one panel
// per length.
std::string plot_svg(const std::vector<CellSummary>& cells);
// A point of a plot of other scores than the exact ones.
struct PlotValue {
  std::string panel, method;  // the panel's title
  double kib = 0, percent = 0;
};
std::string plot_svg(const std::vector<PlotValue>& values);

}  // namespace mneme::eval
