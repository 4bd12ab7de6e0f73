#include "apps/eval/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "src/base/error.h"
#include "src/base/ratio.h"
#include "src/base/size32.h"

namespace mneme::eval {
namespace {

double per_step(std::int64_t bytes, const MethodCost& c) {
  return ratio(bytes, c.steps);
}
double budget(const MethodCost& c) {
  return ratio(c.attended, c.attended_heads);
}

std::string percent(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? "-" : fmt::format("{:.1f}", mneme::percent(part, whole));
}

std::string kept_text(const MethodCost& c) {
  return c.prefill_ends == 0 ? "-" : fmt::format("{:.1f}", 100 * ratio(c.kept_share, c.prefill_ends));
}

bool is_full(const std::string& method) {
  return method == "full";
}

}  // namespace

double kib_per_step(const MethodCost& c) {
  // `steps` counts every question's steps, so this is what one sequence's step reads.
  return per_step(c.kv_bytes + c.index_bytes_read, c) / 1024;
}

std::vector<CellSummary> summarise(const std::vector<CellRecord>& records) {
  std::vector<CellSummary> cells;
  std::map<std::tuple<std::string, std::int64_t, std::int64_t>, const CellRecord*> full;
  for (const CellRecord& r : records)
    if (is_full(r.method)) full[{r.task, r.length, r.sample}] = &r;
  std::map<std::size_t, std::vector<double>> differences;  // by cell
  for (const CellRecord& r : records) {
    auto it = std::find_if(cells.begin(), cells.end(), [&](const CellSummary& c) {
      return c.task == r.task && c.length == r.length && c.method == r.method;
    });
    if (it == cells.end()) {
      cells.push_back({.task = r.task, .length = r.length, .method = r.method});
      it = cells.end() - 1;
    }
    add_cost(it->cost, r.cost);
    it->log_likelihood += r.log_likelihood;
    it->scored_tokens += r.scored_tokens;
    const auto base = full.find({r.task, r.length, r.sample});
    for (std::size_t i = 0; i < r.answers.size(); ++i) {
      ++it->n;
      it->right += r.answers[i].right ? 1 : 0;
      if (base == full.end() || i >= base->second->answers.size()) continue;
      const double difference = (r.answers[i].right ? 1 : 0) - (base->second->answers[i].right ? 1 : 0);
      differences[it - cells.begin()].push_back(100 * difference);
    }
  }
  for (auto& [i, d] : differences) {
    CellSummary& c = cells[i];
    const double n = size32(d);
    c.n_pairs = d.size();
    for (double x : d) c.difference += x / n;
    double squares = 0;
    for (double x : d) squares += (x - c.difference) * (x - c.difference);
    // With every pair alike the sample's deviation is 0 and says nothing: the rule of three bounds it.
    c.half_width = squares == 0 ? 300 / n : 1.96 * std::sqrt(squares / std::max(1.0, n - 1) / n);
  }
  return cells;
}

using Cells = std::vector<std::string>;

std::string markdown_table(const Cells& head, const std::vector<Cells>& rows, std::size_t fixed) {
  std::string out, rule;
  const auto reported = [&](std::size_t i) {
    return i < fixed || std::any_of(rows.begin(), rows.end(), [&](const Cells& r) { return r[i] != "-"; });
  };
  const auto add = [&](const Cells& cells) {
    out += "|";
    for (std::size_t i = 0; i < cells.size(); ++i)
      if (reported(i)) out += " " + cells[i] + " |";
    out += "\n";
  };
  add(head);
  for (std::size_t i = 0; i < head.size(); ++i) rule += reported(i) ? "---|" : "";
  out += "|" + rule + "\n";
  for (const Cells& row : rows) add(row);
  return out;
}

namespace {

Cells cells_of(const CellSummary& c) {
  const MethodCost& k = c.cost;
  const auto audits = real(std::max<std::int64_t>(k.audit.samples, 1));
  const auto audited = [&](double sum) {
    return k.audit.samples == 0 ? std::string("-") : fmt::format("{:.1f}", 100 * sum / audits);
  };
  return {c.task,
          std::to_string(c.length),
          c.method,
          c.n == 0 ? "-" : fmt::format("{:.1f} ({}/{})", c.exact(), c.right, c.n),
          c.n_pairs == 0 || is_full(c.method) ? "-" : fmt::format("{:+.1f} ± {:.1f}", c.difference, c.half_width),
          c.scored_tokens == 0 ? "-" : fmt::format("{:.3f}", std::exp(-ratio(c.log_likelihood, c.scored_tokens))),
          fmt::format("{:.0f}", budget(k)),
          kept_text(k),
          fmt::format("{:.0f}", kib_per_step(k)),
          percent(k.corrections, k.checks),
          percent(k.selections, k.selections + k.reused),
          percent(k.replaced, k.selected),
          audited(k.audit.recall),
          audited(k.audit.mass),
          audited(k.audit.error),
          k.audit.windows == 0 ? "-" : fmt::format("{:.2f}", ratio(k.audit.rank, k.audit.windows)),
          fmt::format("{:.0f}", ratio(k.steps, k.seconds))};
}

}  // namespace

std::string table(const std::vector<CellSummary>& cells) {
  const Cells head = {"task",     "length", "method",   "exact %",          "against full", "perplexity",
                      "budget",   "kept %", "KiB/step", "corrected %",      "reselected %", "turnover %",
                      "recall %", "mass %", "error %",  "rank correlation", "tokens/s"};
  std::vector<Cells> rows;
  for (const CellSummary& c : cells) rows.push_back(cells_of(c));
  return markdown_table(head, rows, 3);
}

// A row a layer, a column a method: models have more layers than a comparison has methods.
std::string perplexity_table(const std::vector<CellSummary>& cells) {
  Cells head = {"perplexity of scores, % of even ones"};
  std::vector<Cells> rows;
  for (const CellSummary& c : cells) {
    if (c.cost.scored.empty()) continue;
    while (rows.size() < c.cost.scored.size()) {
      rows.push_back({fmt::format("layer {}", rows.size())});
      rows.back().resize(head.size(), "-");
    }
    head.push_back(fmt::format("{} {} {}", c.task, c.length, c.method));
    for (std::size_t l = 0; l < rows.size(); ++l)
      rows[l].push_back(l >= c.cost.scored.size()
                            ? "-"
                            : fmt::format("{:.2f}", 100 * ratio(c.cost.score_perplexity[l], c.cost.scored[l])));
  }
  return rows.empty() ? "" : markdown_table(head, rows, head.size());
}

nlohmann::json to_json(const CellSummary& c) {
  const MethodCost& k = c.cost;
  const auto audits = real(std::max<std::int64_t>(k.audit.samples, 1));
  nlohmann::json j = {{"task", c.task},
                      {"length", c.length},
                      {"method", c.method},
                      {"answers", c.n},
                      {"right", c.right},
                      {"exact_percent", c.exact()},
                      {"achieved_budget_tokens", budget(k)},
                      {"kib_per_step", kib_per_step(k)},
                      {"tokens_per_second", ratio(k.steps, k.seconds)}};
  if (c.n_pairs > 0)
    j["against_full"] = {{"pairs", c.n_pairs}, {"points", c.difference}, {"half_width_95", c.half_width}};
  if (c.scored_tokens > 0) j["perplexity"] = std::exp(-ratio(c.log_likelihood, c.scored_tokens));
  if (k.prefill_ends > 0) j["kept_share"] = ratio(k.kept_share, k.prefill_ends);
  if (k.checks > 0) j["correction_rate"] = ratio(k.corrections, k.checks);
  if (k.selections + k.reused > 0) j["reselected_rate"] = ratio(k.selections, k.selections + k.reused);
  if (k.selected > 0) j["turnover"] = ratio(k.replaced, k.selected);
  if (k.audit.samples > 0)
    j["audit"] = {{"samples", k.audit.samples},
                  {"recall", k.audit.recall / audits},
                  {"mass", k.audit.mass / audits},
                  {"error", k.audit.error / audits}};
  if (k.audit.windows > 0) j["rank_correlation"] = ratio(k.audit.rank, k.audit.windows);
  for (std::size_t l = 0; l < k.scored.size(); ++l)
    j["score_perplexity_by_layer"].push_back(ratio(k.score_perplexity[l], k.scored[l]));
  return j;
}

nlohmann::json to_json(const CellRecord& r) {
  nlohmann::json answers = nlohmann::json::array();
  for (const AnswerRecord& a : r.answers)
    answers.push_back({{"expected", a.expected}, {"answer", a.answer}, {"depth", a.depth}, {"right", a.right}});
  return {{"task", r.task},
          {"length", r.length},
          {"sample", r.sample},
          {"method", r.method},
          {"answers", answers},
          {"log_likelihood", r.log_likelihood},
          {"scored_tokens", r.scored_tokens},
          {"cost", cost_json(r.cost)}};
}

nlohmann::json cost_json(const MethodCost& k) {
  return {k.steps,         k.seconds,     k.attended,   k.attended_heads,  k.kv_bytes,      k.index_bytes_read,
          k.checks,        k.corrections, k.selected,   k.replaced,        k.audit.samples, k.audit.recall,
          k.audit.mass,    k.audit.error, k.kept_share, k.prefill_ends,    k.selections,    k.reused,
          k.audit.windows, k.audit.rank,  k.scored,     k.score_perplexity};
}

MethodCost cost_from_json(const nlohmann::json& c) {
  MethodCost k = {.steps = c.at(0),
                  .seconds = c.at(1),
                  .attended = c.at(2),
                  .attended_heads = c.at(3),
                  .kv_bytes = c.at(4),
                  .index_bytes_read = c.at(5),
                  .checks = c.at(6),
                  .corrections = c.at(7),
                  .selected = c.at(8),
                  .replaced = c.at(9),
                  .audit = {.samples = c.at(10), .recall = c.at(11), .mass = c.at(12), .error = c.at(13)}};
  k.kept_share = c.at(14);
  k.prefill_ends = c.at(15);
  k.selections = c.at(16);
  k.reused = c.at(17);
  if (c.size() <= 18) return k;  // a file of before
  k.audit.windows = c.at(18);
  k.audit.rank = c.at(19);
  k.scored = c.at(20).get<std::vector<std::int64_t>>();
  k.score_perplexity = c.at(21).get<std::vector<double>>();
  return k;
}

CellRecord record_from_json(const nlohmann::json& j) {
  try {
    CellRecord r{.task = j.at("task"), .length = j.at("length"), .sample = j.at("sample"), .method = j.at("method")};
    for (const auto& a : j.at("answers"))
      r.answers.push_back(
          {.expected = a.at("expected"), .answer = a.at("answer"), .depth = a.at("depth"), .right = a.at("right")});
    r.log_likelihood = j.at("log_likelihood");
    r.scored_tokens = j.at("scored_tokens");
    r.cost = cost_from_json(j.at("cost"));
    return r;
  } catch (const nlohmann::json::exception& e) {
    fail(ErrorKind::kFormat, "a line of the run's file is no record: {}", e.what());
  }
}

}  // namespace mneme::eval
