#include "apps/eval/runs/suite_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "src/base/ratio.h"
#include "src/base/size32.h"

namespace mneme::eval {
namespace {

using Cells = std::vector<std::string>;

SuiteCell& cell_of(std::vector<SuiteCell>& cells, const std::string& column, std::int64_t length,
                   const std::string& method) {
  const auto is = [&](const SuiteCell& c) { return c.column == column && c.length == length && c.method == method; };
  const auto at = std::find_if(cells.begin(), cells.end(), is);
  return at != cells.end() ? *at : cells.emplace_back(SuiteCell{.column = column, .method = method, .length = length});
}

using Key = std::tuple<std::int64_t, std::size_t>;  // context, question

void add_answer(SuiteCell& cell, const SuiteAnswer& a, const double* full) {
  const double mean = average_of_runs(a.scores);
  cell.scores.push_back(mean);
  if (full != nullptr) cell.differences.push_back(mean - *full);
  cell.solved += std::any_of(a.scores.begin(), a.scores.end(), [](double s) { return s >= 1; }) ? 1 : 0;
  cell.truncated += a.truncated ? 1 : 0;
  cell.answer_tokens += a.tokens;
  cell.runs.resize(std::max(cell.runs.size(), a.scores.size()));
  for (std::size_t k = 0; k < a.scores.size(); ++k) cell.runs[k] += a.scores[k];
}

template <typename F>
std::vector<std::string> distinct_of(const std::vector<SuiteCell>& cells, std::int64_t length, F&& field) {
  std::vector<std::string> all;
  for (const SuiteCell& c : cells)
    if (c.length == length && std::find(all.begin(), all.end(), field(c)) == all.end()) all.push_back(field(c));
  return all;
}

const SuiteCell* find_cell(const std::vector<SuiteCell>& cells, const std::string& column, std::int64_t length,
                           const std::string& method) {
  for (const SuiteCell& c : cells)
    if (c.column == column && c.length == length && c.method == method) return &c;
  return nullptr;
}

bool is_perplexity(const SuiteCell& c) {
  return c.scores.empty() && c.scored_tokens > 0;
}

double perplexity(const SuiteCell& c) {
  return std::exp(-ratio(c.log_likelihood, c.scored_tokens));
}

std::string score_text(const SuiteCell* c) {
  if (c == nullptr) return "-";
  if (is_perplexity(*c)) return fmt::format("{:.3f}", perplexity(*c));
  const Interval i = c->interval();
  return fmt::format("{:.2f} ±{:.1f}", 100 * i.mean, 100 * i.half_width);
}

std::int64_t questions_of(const std::vector<SuiteCell>& cells, const std::string& column, std::int64_t length) {
  std::int64_t n = 0;
  for (const SuiteCell& c : cells)
    if (c.column == column && c.length == length) n = std::max(n, std::ssize(c.scores));
  return n;
}

// Mean of the columns' means, as the papers' "Avg."; "-" where a column is missing.
std::string mean_text(const std::vector<SuiteCell>& cells, const std::vector<std::string>& columns, std::int64_t length,
                      const std::string& method) {
  double sum = 0;
  for (const std::string& column : columns) {
    const SuiteCell* c = find_cell(cells, column, length, method);
    if (c == nullptr || c->scores.empty()) return "-";
    sum += 100 * c->interval().mean;
  }
  return fmt::format("{:.2f}", ratio(sum, columns.size()));
}

std::string heading(std::int64_t length) {
  return length == 0 ? "" : fmt::format("{} tokens\n\n", length);
}

std::string score_table(const std::vector<SuiteCell>& cells, std::int64_t length, TableLayout layout, bool with_mean) {
  const auto columns = distinct_of(cells, length, [](const SuiteCell& c) { return c.column; });
  const auto methods = distinct_of(cells, length, [](const SuiteCell& c) { return c.method; });
  const auto titled = [&](const std::string& column) {
    const std::int64_t n = questions_of(cells, column, length);
    return n == 0 ? column : fmt::format("{} (n={})", column, n);
  };
  Cells head;
  std::vector<Cells> rows;
  if (layout == TableLayout::kMethodRows) {
    head = {"method"};
    for (const std::string& c : columns) head.push_back(titled(c));
    if (with_mean) head.push_back("Avg.");
    for (const std::string& m : methods) {
      rows.push_back({m});
      for (const std::string& c : columns) rows.back().push_back(score_text(find_cell(cells, c, length, m)));
      if (with_mean) rows.back().push_back(mean_text(cells, columns, length, m));
    }
  } else {
    head = {"task"};
    head.insert(head.end(), methods.begin(), methods.end());
    for (const std::string& c : columns) {
      rows.push_back({titled(c)});
      for (const std::string& m : methods) rows.back().push_back(score_text(find_cell(cells, c, length, m)));
    }
    if (with_mean) {
      rows.push_back({"Avg."});
      for (const std::string& m : methods) rows.back().push_back(mean_text(cells, columns, length, m));
    }
  }
  return heading(length) + markdown_table(head, rows, head.size());
}

// What methods cost and how far from `full` they are, over all tasks of a length.
std::string cost_table(const std::vector<SuiteCell>& cells, std::int64_t length) {
  const Cells head = {"method",      "against full", "budget",     "kept %",        "KiB/step",
                      "corrected %", "reselected %", "turnover %", "answer tokens", "truncated",
                      "avg@k",       "trimmed avg",  "pass@k",     "seconds"};
  std::vector<Cells> rows;
  for (const std::string& m : distinct_of(cells, length, [](const SuiteCell& c) { return c.method; })) {
    SuiteCell all;
    for (const SuiteCell& c : cells) {
      if (c.length != length || c.method != m) continue;
      add_cost(all.cost, c.cost);
      all.scores.insert(all.scores.end(), c.scores.begin(), c.scores.end());
      all.differences.insert(all.differences.end(), c.differences.begin(), c.differences.end());
      all.answer_tokens += c.answer_tokens, all.truncated += c.truncated, all.solved += c.solved;
      all.seconds += c.seconds;
      all.runs.resize(std::max(all.runs.size(), c.runs.size()));
      for (std::size_t k = 0; k < c.runs.size(); ++k) all.runs[k] += c.runs[k];
    }
    const MethodCost& k = all.cost;
    const double n = std::max(size32(all.scores), 1);
    const auto percent = [](std::int64_t part, std::int64_t whole) {
      return whole == 0 ? std::string("-") : fmt::format("{:.1f}", 100 * ratio(part, whole));
    };
    std::vector<double> runs = all.runs;
    for (double& r : runs) r *= 100 / n;
    const Interval d = mean_interval(all.differences);
    const bool several = runs.size() > 1;
    rows.push_back({m,
                    all.differences.empty() || m == "full"
                        ? "-"
                        : fmt::format("{:+.2f} ± {:.1f}", 100 * d.mean, 100 * d.half_width),
                    fmt::format("{:.0f}", ratio(k.attended, k.attended_heads)),
                    k.prefill_ends == 0 ? "-" : fmt::format("{:.1f}", 100 * ratio(k.kept_share, k.prefill_ends)),
                    fmt::format("{:.0f}", kib_per_step(k)), percent(k.corrections, k.checks),
                    percent(k.selections, k.selections + k.reused), percent(k.replaced, k.selected),
                    all.answer_tokens == 0 ? "-" : std::to_string(all.answer_tokens),
                    all.truncated == 0 ? "-" : std::to_string(all.truncated),
                    several ? fmt::format("{:.2f}", average_of_runs(runs)) : "-",
                    several ? fmt::format("{:.2f}", trimmed_average_of_runs(runs)) : "-",
                    several ? fmt::format("{:.2f}", 100 * static_cast<double>(all.solved) / n) : "-",
                    fmt::format("{:.1f}", all.seconds)});
  }
  return markdown_table(head, rows, 1);
}

std::vector<std::int64_t> lengths_of(const std::vector<SuiteCell>& cells) {
  std::set<std::int64_t> lengths;
  for (const SuiteCell& c : cells) lengths.insert(c.length);
  return {lengths.begin(), lengths.end()};
}

// Means over tasks by length, as RULER's table.
std::string length_table(const std::vector<SuiteCell>& cells, const std::vector<std::int64_t>& lengths) {
  Cells head = {"method"};
  for (std::int64_t l : lengths) head.push_back(std::to_string(l));
  std::vector<Cells> rows;
  for (const std::string& m : distinct_of(cells, lengths.front(), [](const SuiteCell& c) { return c.method; })) {
    rows.push_back({m});
    for (std::int64_t l : lengths)
      rows.back().push_back(mean_text(cells, distinct_of(cells, l, [](const SuiteCell& c) { return c.column; }), l, m));
  }
  return markdown_table(head, rows, head.size());
}

nlohmann::json cell_json(const SuiteCell& c) {
  nlohmann::json j = {{"column", c.column},
                      {"length", c.length},
                      {"method", c.method},
                      {"questions", c.scores.size()},
                      {"kib_per_step", kib_per_step(c.cost)},
                      {"achieved_budget_tokens", ratio(c.cost.attended, c.cost.attended_heads)},
                      {"truncated", c.truncated},
                      {"answer_tokens", c.answer_tokens},
                      {"prefill_seconds", c.prefill_seconds},
                      {"seconds", c.seconds}};
  if (!c.scores.empty()) {
    const Interval i = c.interval();
    j["score_percent"] = 100 * i.mean;
    j["half_width_95"] = 100 * i.half_width;
  }
  if (!c.differences.empty()) {
    const Interval d = mean_interval(c.differences);
    j["against_full"] = {
        {"pairs", c.differences.size()}, {"points", 100 * d.mean}, {"half_width_95", 100 * d.half_width}};
  }
  if (c.scored_tokens > 0) j["perplexity"] = perplexity(c);
  if (c.runs.size() > 1) {
    std::vector<double> runs = c.runs;
    for (double& r : runs) r *= ratio(100, c.scores.size());
    j["samples"] = {{"k", runs.size()},
                    {"avg", average_of_runs(runs)},
                    {"trimmed_avg", trimmed_average_of_runs(runs)},
                    {"pass", 100 * ratio(c.solved, c.scores.size())}};
  }
  const MethodCost& k = c.cost;
  if (k.checks > 0) j["correction_rate"] = ratio(k.corrections, k.checks);
  if (k.selections + k.reused > 0) j["reselected_rate"] = ratio(k.selections, k.selections + k.reused);
  if (k.selected > 0) j["turnover"] = ratio(k.replaced, k.selected);
  if (k.prefill_ends > 0) j["kept_share"] = ratio(k.kept_share, k.prefill_ends);
  return j;
}

}  // namespace

SuiteSummary summarise_suite(const std::vector<SuiteRecord>& records) {
  SuiteSummary out;
  std::map<Key, double> full;
  for (const SuiteRecord& r : records)
    for (std::size_t i = 0; r.method == "full" && i < r.answers.size(); ++i)
      full[{r.context, i}] = average_of_runs(r.answers[i].scores);
  for (const SuiteRecord& r : records) {
    SuiteCell& cell = cell_of(out.tasks, r.task, r.length, r.method);
    add_cost(cell.cost, r.cost);
    cell.log_likelihood += r.log_likelihood;
    cell.scored_tokens += r.scored_tokens;
    cell.prefill_seconds += r.prefill_seconds;
    cell.seconds += r.seconds;
    for (std::size_t i = 0; i < r.answers.size(); ++i) {
      const auto base = full.find({r.context, i});
      const double* of_full = base == full.end() ? nullptr : &base->second;
      add_answer(cell, r.answers[i], of_full);
      for (const std::string& group : r.answers[i].groups)
        add_answer(cell_of(out.groups, group, r.length, r.method), r.answers[i], of_full);
    }
  }
  return out;
}

std::string suite_markdown(const SuiteSummary& summary, TableLayout layout) {
  std::string out;
  const auto lengths = lengths_of(summary.tasks);
  for (std::int64_t length : lengths) {
    const auto columns = distinct_of(summary.tasks, length, [](const SuiteCell& c) { return c.column; });
    out += score_table(summary.tasks, length, layout, columns.size() > 1) + "\n";
    if (!distinct_of(summary.groups, length, [](const SuiteCell& c) { return c.column; }).empty())
      out += score_table(summary.groups, length, layout, false) + "\n";
    out += cost_table(summary.tasks, length) + "\n";
  }
  if (lengths.size() > 1) out += length_table(summary.tasks, lengths) + "\n";
  if (!out.empty()) out.pop_back();
  return out;
}

nlohmann::json suite_json(const SuiteSummary& summary) {
  nlohmann::json j = {{"cells", nlohmann::json::array()}, {"groups", nlohmann::json::array()}};
  for (const SuiteCell& c : summary.tasks) j["cells"].push_back(cell_json(c));
  for (const SuiteCell& c : summary.groups) j["groups"].push_back(cell_json(c));
  return j;
}

std::string suite_svg(const SuiteSummary& summary) {
  std::vector<PlotValue> values;
  for (const SuiteCell& c : summary.tasks)
    if (!c.scores.empty())
      values.push_back({c.length == 0 ? "mean score of the tasks" : fmt::format("{} tokens of context", c.length),
                        c.method, kib_per_step(c.cost), 100 * c.interval().mean});
  return plot_svg(values);
}

}  // namespace mneme::eval
