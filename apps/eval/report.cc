#include "src/eval/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "src/base/error.h"

namespace mneme::eval {
namespace {

double ratio(double a, double b) {
  return b == 0 ? 0 : a / b;
}
double per_step(std::int64_t bytes, const MethodCost& c) {
  return ratio(static_cast<double>(bytes), static_cast<double>(c.steps));
}
double kib_per_step(const MethodCost& c) {
  // `steps` counts every question's steps, so this is what one sequence's step reads.
  return per_step(c.kv_bytes + c.index_bytes_read, c) / 1024;
}
double budget(const MethodCost& c) {
  return ratio(static_cast<double>(c.attended), static_cast<double>(c.attended_heads));
}

std::string percent(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? "-" : fmt::format("{:.1f}", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string kept_text(const MethodCost& c) {
  return c.prefill_ends == 0 ? "-"
                             : fmt::format("{:.1f}", 100 * ratio(c.kept_share, static_cast<double>(c.prefill_ends)));
}

bool is_full(const std::string& method) {
  return method == "full";
}

}  // namespace

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
      differences[static_cast<std::size_t>(it - cells.begin())].push_back(100 * difference);
    }
  }
  for (auto& [i, d] : differences) {
    CellSummary& c = cells[i];
    const auto n = static_cast<double>(d.size());
    c.n_pairs = static_cast<std::int64_t>(d.size());
    for (double x : d) c.difference += x / n;
    double squares = 0;
    for (double x : d) squares += (x - c.difference) * (x - c.difference);
    // With every pair alike the sample's deviation is 0 and says nothing: the rule of three bounds it.
    c.half_width = squares == 0 ? 300 / n : 1.96 * std::sqrt(squares / std::max(1.0, n - 1) / n);
  }
  return cells;
}

std::string table(const std::vector<CellSummary>& cells) {
  std::string out =
      "| task | length | method | exact % | against full | perplexity | budget | kept % | KiB/step | corrected % | "
      "selected "
      "anew % | turnover % | recall % | mass % | error % "
      "| rank correlation | tokens/s |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const CellSummary& c : cells) {
    const MethodCost& k = c.cost;
    const auto audits = static_cast<double>(std::max<std::int64_t>(k.audits, 1));
    const auto audited = [&](double sum) {
      return k.audits == 0 ? std::string("-") : fmt::format("{:.1f}", 100 * sum / audits);
    };
    const std::string perplexity =
        c.scored_tokens == 0
            ? "-"
            : fmt::format("{:.3f}", std::exp(-c.log_likelihood / static_cast<double>(c.scored_tokens)));
    out += fmt::format(
        "| {} | {} | {} | {} | {} | {} | {:.0f} | {} | {:.0f} | {} | {} | {} | {} | {} | {} | {} | {:.0f} |\n", c.task,
        c.length, c.method, c.n == 0 ? std::string("-") : fmt::format("{:.1f} ({}/{})", c.exact(), c.right, c.n),
        c.n_pairs == 0 || is_full(c.method) ? std::string("-")
                                            : fmt::format("{:+.1f} ± {:.1f}", c.difference, c.half_width),
        perplexity, budget(k), kept_text(k), kib_per_step(k), percent(k.corrections, k.checks),
        percent(k.selections, k.selections + k.reused), percent(k.replaced, k.selected), audited(k.audit_recall),
        audited(k.audit_mass), audited(k.audit_error),
        k.rank_audits == 0 ? std::string("-")
                           : fmt::format("{:.2f}", k.audit_rank / static_cast<double>(k.rank_audits)),
        ratio(static_cast<double>(k.steps), k.seconds));
  }
  return out;
}

std::string perplexity_table(const std::vector<CellSummary>& cells) {
  std::string rows;
  std::size_t n_layers = 0;
  for (const CellSummary& c : cells) {
    if (c.cost.scored.empty()) continue;
    n_layers = std::max(n_layers, c.cost.scored.size());
    rows += fmt::format("| {} | {} | {} |", c.task, c.length, c.method);
    for (std::size_t l = 0; l < c.cost.scored.size(); ++l)
      rows += fmt::format(" {:.2f} |", 100 * ratio(c.cost.score_perplexity[l], static_cast<double>(c.cost.scored[l])));
    rows += "\n";
  }
  if (rows.empty()) return rows;
  std::string head = "| task | length | perplexity of scores, % of even ones |", rule = "|---|---|---|";
  for (std::size_t l = 0; l < n_layers; ++l) {
    head += fmt::format(" layer {} |", l);
    rule += "---|";
  }
  return head + "\n" + rule + "\n" + rows;
}

nlohmann::json to_json(const CellSummary& c) {
  const MethodCost& k = c.cost;
  const auto audits = static_cast<double>(std::max<std::int64_t>(k.audits, 1));
  nlohmann::json j = {{"task", c.task},
                      {"length", c.length},
                      {"method", c.method},
                      {"answers", c.n},
                      {"right", c.right},
                      {"exact_percent", c.exact()},
                      {"achieved_budget_tokens", budget(k)},
                      {"kib_per_step", kib_per_step(k)},
                      {"tokens_per_second", ratio(static_cast<double>(k.steps), k.seconds)}};
  if (c.n_pairs > 0)
    j["against_full"] = {{"pairs", c.n_pairs}, {"points", c.difference}, {"half_width_95", c.half_width}};
  if (c.scored_tokens > 0) j["perplexity"] = std::exp(-c.log_likelihood / static_cast<double>(c.scored_tokens));
  if (k.prefill_ends > 0) j["kept_share"] = ratio(k.kept_share, static_cast<double>(k.prefill_ends));
  if (k.checks > 0) j["correction_rate"] = ratio(static_cast<double>(k.corrections), static_cast<double>(k.checks));
  if (k.selections + k.reused > 0)
    j["selected_anew_rate"] = ratio(static_cast<double>(k.selections), static_cast<double>(k.selections + k.reused));
  if (k.selected > 0) j["turnover"] = ratio(static_cast<double>(k.replaced), static_cast<double>(k.selected));
  if (k.audits > 0)
    j["audit"] = {{"samples", k.audits},
                  {"recall", k.audit_recall / audits},
                  {"mass", k.audit_mass / audits},
                  {"error", k.audit_error / audits}};
  if (k.rank_audits > 0) j["rank_correlation"] = ratio(k.audit_rank, static_cast<double>(k.rank_audits));
  for (std::size_t l = 0; l < k.scored.size(); ++l)
    j["score_perplexity_by_layer"].push_back(ratio(k.score_perplexity[l], static_cast<double>(k.scored[l])));
  return j;
}

nlohmann::json to_json(const CellRecord& r) {
  nlohmann::json answers = nlohmann::json::array();
  for (const AnswerRecord& a : r.answers)
    answers.push_back({{"expected", a.expected}, {"answer", a.answer}, {"depth", a.depth}, {"right", a.right}});
  const MethodCost& k = r.cost;
  return {{"task", r.task},
          {"length", r.length},
          {"sample", r.sample},
          {"method", r.method},
          {"answers", answers},
          {"log_likelihood", r.log_likelihood},
          {"scored_tokens", r.scored_tokens},
          {"cost", {k.steps,       k.seconds,     k.attended,   k.attended_heads,  k.kv_bytes,   k.index_bytes_read,
                    k.checks,      k.corrections, k.selected,   k.replaced,        k.audits,     k.audit_recall,
                    k.audit_mass,  k.audit_error, k.kept_share, k.prefill_ends,    k.selections, k.reused,
                    k.rank_audits, k.audit_rank,  k.scored,     k.score_perplexity}}};
}

CellRecord record_from_json(const nlohmann::json& j) {
  try {
    CellRecord r{.task = j.at("task"), .length = j.at("length"), .sample = j.at("sample"), .method = j.at("method")};
    for (const auto& a : j.at("answers"))
      r.answers.push_back(
          {.expected = a.at("expected"), .answer = a.at("answer"), .depth = a.at("depth"), .right = a.at("right")});
    r.log_likelihood = j.at("log_likelihood");
    r.scored_tokens = j.at("scored_tokens");
    const auto& c = j.at("cost");
    MethodCost& k = r.cost;
    k = {.steps = c.at(0),
         .seconds = c.at(1),
         .attended = c.at(2),
         .attended_heads = c.at(3),
         .kv_bytes = c.at(4),
         .index_bytes_read = c.at(5),
         .checks = c.at(6),
         .corrections = c.at(7),
         .selected = c.at(8),
         .replaced = c.at(9),
         .audits = c.at(10),
         .audit_recall = c.at(11),
         .audit_mass = c.at(12),
         .audit_error = c.at(13)};
    k.kept_share = c.at(14);
    k.prefill_ends = c.at(15);
    k.selections = c.at(16);
    k.reused = c.at(17);
    if (c.size() <= 18) return r;  // a file of before
    k.rank_audits = c.at(18);
    k.audit_rank = c.at(19);
    k.scored = c.at(20).get<std::vector<std::int64_t>>();
    k.score_perplexity = c.at(21).get<std::vector<double>>();
    return r;
  } catch (const nlohmann::json::exception& e) {
    fail(ErrorKind::kFormat, "a line of the run's file is no record: {}", e.what());
  }
}

std::string plot_svg(const std::vector<CellSummary>& cells) {
  constexpr double kWidth = 460, kHeight = 320, kLeft = 56, kBottom = 44, kTop = 34, kRight = 16;
  constexpr std::string_view kColours[] = {"#1b6ca8", "#c8553d", "#3c8d40", "#8e5ea2",
                                           "#b8860b", "#444444", "#d1478c", "#2aa198"};
  struct Point {
    std::string method;
    double bytes = 0, exact = 0;
    int n = 0;
  };
  std::vector<std::pair<std::int64_t, std::vector<Point>>> panels;
  for (const CellSummary& c : cells) {
    if (c.n == 0) continue;
    auto panel = std::find_if(panels.begin(), panels.end(), [&](const auto& p) { return p.first == c.length; });
    if (panel == panels.end()) panel = panels.insert(panels.end(), {c.length, {}});
    auto point =
        std::find_if(panel->second.begin(), panel->second.end(), [&](const Point& p) { return p.method == c.method; });
    if (point == panel->second.end()) point = panel->second.insert(panel->second.end(), {c.method});
    point->bytes += kib_per_step(c.cost);
    point->exact += c.exact();
    ++point->n;
  }
  double low = 1e300, high = 0;
  for (auto& [length, points] : panels)
    for (Point& p : points) {
      p.bytes /= p.n;
      p.exact /= p.n;
      low = std::min(low, std::max(p.bytes, 1.0));
      high = std::max(high, p.bytes);
    }
  low = std::pow(2, std::floor(std::log2(low)));
  high = std::max(low * 2, std::pow(2, std::ceil(std::log2(std::max(high, 1.0)))));
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" "
      "font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      kWidth * static_cast<double>(std::max<std::size_t>(panels.size(), 1)), kHeight);
  for (std::size_t i = 0; i < panels.size(); ++i) {
    const double x0 = kWidth * static_cast<double>(i) + kLeft, x1 = kWidth * static_cast<double>(i + 1) - kRight;
    const double y0 = kHeight - kBottom, y1 = kTop;
    const auto x = [&](double kib) {
      return x0 + (x1 - x0) * std::log2(std::max(kib, low) / low) / std::log2(high / low);
    };
    const auto y = [&](double exact) { return y0 - (y0 - y1) * exact / 100; };
    svg += fmt::format("<text x=\"{}\" y=\"18\" font-size=\"13\">{} tokens of context</text>\n", x0, panels[i].first);
    for (int tick = 0; tick <= 100; tick += 25)
      svg += fmt::format(
          "<line x1=\"{0}\" x2=\"{1}\" y1=\"{2}\" y2=\"{2}\" stroke=\"#ddd\"/><text x=\"{3}\" y=\"{4}\" "
          "text-anchor=\"end\">{5} %</text>\n",
          x0, x1, y(tick), x0 - 6, y(tick) + 4, tick);
    for (double kib = low; kib <= high * 1.01; kib *= 2)
      svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{:.0f}</text>\n", x(kib), y0 + 15, kib);
    svg +=
        fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">KiB of keys, values and index read a step</text>\n",
                    (x0 + x1) / 2, kHeight - 10);
    std::size_t colour = 0;
    for (const Point& p : panels[i].second) {
      svg += fmt::format(
          "<circle cx=\"{0}\" cy=\"{1}\" r=\"4\" fill=\"{2}\"/><text x=\"{3}\" y=\"{4}\" fill=\"{2}\">{5}</text>\n",
          x(p.bytes), y(p.exact), kColours[colour % std::size(kColours)], x(p.bytes) + 6,
          y(p.exact) + 4 + 11 * static_cast<double>(colour % 3), p.method);
      ++colour;
    }
  }
  return svg + "</svg>\n";
}

}  // namespace mneme::eval
