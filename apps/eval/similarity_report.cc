#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "apps/eval/figures/paper.h"
#include "apps/eval/gate_record.h"
#include "apps/eval/similarity.h"
#include "src/base/ratio.h"
#include "src/base/size32.h"

namespace mneme::eval {
namespace {

struct PoolName {
  GatePool pool;
  std::string_view name;
};
constexpr std::array kPools = {PoolName{GatePool::kMean, "mean"}, PoolName{GatePool::kMax, "max"},
                               PoolName{GatePool::kAny, "any"}};
constexpr int kTauSteps = 20;  // from 0 to 1
// FreeKV leaves the first layer dense, whose queries move the most.
constexpr std::int32_t kFirstGatedLayer = 1;

double mean(const std::vector<float>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / size32(values);
}

std::vector<float> layer_cosines(const SimilarityObserver& observer, std::int32_t layer) {
  std::vector<float> all;
  for (std::int32_t h = 0; h < observer.shape().n_heads; ++h) {
    const auto& head = observer.cosines(layer, h);
    all.insert(all.end(), head.begin(), head.end());
  }
  return all;
}

// Heads side by side are read up to this many; of more, the table shows the lowest and the highest mean.
constexpr std::int32_t kMaxHeads = 8;

std::string cosine_table(const SimilarityObserver& observer) {
  const std::int32_t n_heads = observer.shape().n_heads;
  const bool by_head = n_heads <= kMaxHeads;
  std::string out = "| layer |", rule = "|---|";
  for (std::int32_t h = 0; by_head && h < n_heads; ++h) {
    out += fmt::format(" head {} |", h);
    rule += "---|";
  }
  if (!by_head) {
    out += " lowest head | highest head |";
    rule += "---|---|";
  }
  out += " mean | p10 | p50 | p90 |\n" + rule + "---|---|---|---|\n";
  for (std::int32_t l = 0; l < observer.shape().n_layers; ++l) {
    std::vector<double> means;
    for (std::int32_t h = 0; h < n_heads; ++h) means.push_back(mean(observer.cosines(l, h)));
    if (!by_head) {
      const auto [lowest, highest] = std::minmax_element(means.begin(), means.end());
      means = {*lowest, *highest};
    }
    out += fmt::format("| {} |", l);
    for (double m : means) out += fmt::format(" {:.2f} |", m);
    const std::vector<float> all = layer_cosines(observer, l);
    out += fmt::format(" {:.3f} | {:.2f} | {:.2f} | {:.2f} |\n", mean(all), percentile(all, 0.1), percentile(all, 0.5),
                       percentile(all, 0.9));
  }
  return out;
}

std::string tau_table(const SimilarityObserver& observer) {
  std::string out = "| tau | mean of the group | largest | any head |\n|---|---|---|---|\n";
  for (int i = 0; i <= kTauSteps; i += 2) {
    const float tau = static_cast<float>(i) / kTauSteps;
    out += fmt::format("| {:.1f} |", tau);
    for (const PoolName& p : kPools)
      out += fmt::format(" {:.1f} % |", 100 * correction_rate(observer.gate_values(p.pool, kFirstGatedLayer), tau));
    out += "\n";
  }
  return out;
}

std::string recall_table(const SimilarityObserver& observer) {
  std::string out = "| index | bytes of keys |", rule = "|---|---|";
  for (std::int32_t budget : observer.options().budgets) {
    out += fmt::format(" recall of {} at {} tokens |", observer.options().top, budget);
    rule += "---|";
  }
  out += "\n" + rule + "\n";
  for (const SimilarityObserver::Recall& r : observer.recalls()) {
    out += fmt::format("| {} | {:.1f} % |", r.index, 100 * r.load_ratio);
    for (double x : r.of) out += fmt::format(" {:.1f} % |", 100 * x);
    out += "\n";
  }
  return out;
}

std::string overlap_table(const SimilarityObserver& observer) {
  std::string out = "| layer | within a segment | pairs | across a boundary | pairs |\n|---|---|---|---|---|\n";
  for (std::int32_t l = 0; l < observer.shape().n_layers; ++l) {
    const SimilarityObserver::Overlap& o = observer.overlap(l);
    out += fmt::format("| {} | {:.3f} | {} | {:.3f} | {} |\n", l, o.within, o.n_within, o.across, o.n_across);
  }
  return out;
}

// A panel of the plot: from data to pixels, with a frame and labels.
class Panel {
 public:
  Panel(double left, std::string_view title, double x_low, double x_high, double y_low, double y_high)
      : left_(left), x_low_(x_low), x_high_(x_high), y_low_(y_low), y_high_(y_high) {
    svg_ = fmt::format("<text x=\"{}\" y=\"18\" font-size=\"13\">{}</text>\n", left, title);
    for (int i = 0; i <= 4; ++i) {
      const double v = y_low + (y_high - y_low) * i / 4;
      svg_ += fmt::format(
          "<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" class=\"rule\"/><text x=\"{3}\" y=\"{4:.1f}\" "
          "text-anchor=\"end\">{5:.2f}</text>\n",
          left, left + kWidth, y(v), left - 6, y(v) + 4, v);
    }
  }
  static constexpr double kWidth = 380, kHeight = 260, kTop = 34;

  double x(double v) const { return left_ + kWidth * (v - x_low_) / (x_high_ - x_low_); }
  double y(double v) const { return kTop + kHeight * (1 - (v - y_low_) / (y_high_ - y_low_)); }
  void tick(double v, std::string_view text) {
    svg_ +=
        fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x(v), kTop + kHeight + 15, text);
  }
  void label(std::string_view text) {
    svg_ += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", left_ + kWidth / 2,
                        kTop + kHeight + 32, text);
  }
  void line(const std::vector<std::pair<double, double>>& points, std::string_view colour) {
    svg_ += "<polyline fill=\"none\" stroke=\"" + std::string(colour) + "\" points=\"";
    for (const auto& [px, py] : points) svg_ += fmt::format("{:.1f},{:.1f} ", x(px), y(py));
    svg_ += "\"/>\n";
  }
  void dot(double px, double py, std::string_view colour) {
    svg_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n", x(px), y(py), colour);
  }
  void text(double px, double py, std::string_view colour, std::string_view words) {
    svg_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"{}\">{}</text>\n", x(px), y(py), colour, words);
  }
  const std::string& svg() const { return svg_; }

 private:
  double left_, x_low_, x_high_, y_low_, y_high_;
  std::string svg_;
};

std::string cosine_panel(const SimilarityObserver& observer, double left) {
  const std::int32_t n = observer.shape().n_layers;
  Panel panel(left, "Cosine of adjacent steps' queries", -0.5, n - 0.5, 0, 1);
  for (std::int32_t l = 0; l < n; ++l) {
    const std::vector<float> all = layer_cosines(observer, l);
    const auto bounded = [](float c) { return std::max(0.0, double{c}); };
    panel.line({{l, bounded(percentile(all, 0.1))}, {l, bounded(percentile(all, 0.9))}}, "#1b6ca8");
    panel.dot(l, bounded(static_cast<float>(mean(all))), "#c8553d");
    if (n <= 16 || l % 4 == 0) panel.tick(l, std::to_string(l));
  }
  panel.label("layer; line: 10th to 90th percentile of steps and heads, dot: mean");
  return panel.svg();
}

std::string tau_panel(const SimilarityObserver& observer, double left) {
  constexpr std::string_view kColours[] = {"#1b6ca8", "#3c8d40", "#c8553d"};
  Panel panel(left, "Share of KV heads that a gate corrects", 0, 1, 0, 1);
  for (std::int32_t p = 0; p < std::ssize(kPools); ++p) {
    const std::vector<float> values = observer.gate_values(kPools[p].pool, kFirstGatedLayer);
    std::vector<std::pair<double, double>> points;
    for (int i = 0; i <= kTauSteps; ++i) {
      const double tau = ratio(i, kTauSteps);
      points.emplace_back(tau, correction_rate(values, static_cast<float>(tau)));
    }
    panel.line(points, kColours[p]);
    panel.text(0.04, 0.92 - 0.06 * p, kColours[p], kPools[p].name);
  }
  for (int i = 0; i <= 4; ++i) panel.tick(i / 4.0, fmt::format("{}", i / 4.0));
  panel.label("tau; cosines pooled over the group");
  return panel.svg();
}

std::string recall_panel(const SimilarityObserver& observer, double left) {
  constexpr std::string_view kColours[] = {"#1b6ca8", "#5a9bd0", "#9fc6e8", "#3c8d40", "#74b978", "#b5dcb7",
                                           "#c8553d", "#db8a78", "#edc0b6", "#8e5ea2", "#b292c0", "#d6c5de"};
  const auto& budgets = observer.options().budgets;
  const auto recalls = observer.recalls();
  Panel panel(left, fmt::format("Recall of the true top {}", observer.options().top), 0, size32(budgets) - 0.4, 0, 1);
  for (std::int32_t b = 0; b < std::ssize(budgets); ++b) panel.tick(b, std::to_string(budgets[b]));
  for (std::int32_t i = 0; i < std::ssize(recalls); ++i) {
    std::vector<std::pair<double, double>> points;
    for (std::int32_t b = 0; b < std::ssize(budgets); ++b) points.emplace_back(b, recalls[i].of[b]);
    const std::string_view colour = kColours[i % std::size(kColours)];
    panel.line(points, colour);
    for (const auto& [x, y] : points) panel.dot(x, y, colour);
    panel.text(size32(budgets) - 0.35, 0.98 - 0.055 * i, colour, recalls[i].index);
  }
  panel.label("tokens that the index selects");
  return panel.svg();
}

}  // namespace

std::string similarity_tables(const SimilarityObserver& observer) {
  return fmt::format(
      "Cosine of adjacent steps' queries, by query head\n\n{}\nKV heads that a gate would correct, layers from {} "
      "on\n\n{}\nTrue tokens among those that an index selects for a query head\n\n{}\nJaccard overlap of the {} "
      "tokens that a "
      "query head truly attends most at adjacent steps; a boundary: mean cosine of the layer below {}\n\n{}",
      cosine_table(observer), kFirstGatedLayer, tau_table(observer), recall_table(observer), observer.options().top,
      observer.options().boundary, overlap_table(observer));
}

nlohmann::json similarity_json(const SimilarityObserver& observer) {
  nlohmann::json layers = nlohmann::json::array(), rates = nlohmann::json::array(), recalls = nlohmann::json::array();
  for (std::int32_t l = 0; l < observer.shape().n_layers; ++l) {
    const std::vector<float> all = layer_cosines(observer, l);
    nlohmann::json heads = nlohmann::json::array();
    for (std::int32_t h = 0; h < observer.shape().n_heads; ++h) heads.push_back(mean(observer.cosines(l, h)));
    layers.push_back({{"layer", l},
                      {"samples", all.size()},
                      {"mean", mean(all)},
                      {"p10", percentile(all, 0.1)},
                      {"p50", percentile(all, 0.5)},
                      {"p90", percentile(all, 0.9)},
                      {"mean_by_head", heads}});
  }
  for (int i = 0; i <= kTauSteps; ++i) {
    const float tau = static_cast<float>(i) / kTauSteps;
    nlohmann::json row = {{"tau", ratio(i, kTauSteps)}};
    for (const PoolName& p : kPools)
      row[std::string(p.name)] = correction_rate(observer.gate_values(p.pool, kFirstGatedLayer), tau);
    rates.push_back(row);
  }
  for (const SimilarityObserver::Recall& r : observer.recalls()) {
    nlohmann::json row = {{"index", r.index}, {"load_ratio", r.load_ratio}, {"samples", r.samples}};
    for (std::size_t b = 0; b < r.of.size(); ++b)
      row["recall"][std::to_string(observer.options().budgets[b])] = r.of[b];
    recalls.push_back(row);
  }
  nlohmann::json overlaps = nlohmann::json::array();
  for (std::int32_t l = 0; l < observer.shape().n_layers; ++l) {
    const SimilarityObserver::Overlap& o = observer.overlap(l);
    overlaps.push_back({{"layer", l},
                        {"within", o.within},
                        {"pairs_within", o.n_within},
                        {"across", o.across},
                        {"pairs_across", o.n_across}});
  }
  return {{"cosines", layers},         {"boundary", observer.options().boundary},
          {"overlaps", overlaps},      {"first_gated_layer", kFirstGatedLayer},
          {"correction_rates", rates}, {"top", observer.options().top},
          {"recalls", recalls}};
}

std::string similarity_svg(const SimilarityObserver& observer) {
  constexpr double kPanel = 450;
  return svg_page(
      3 * kPanel + 240, 340,
      cosine_panel(observer, 50) + tau_panel(observer, 50 + kPanel) + recall_panel(observer, 50 + 2 * kPanel));
}

}  // namespace mneme::eval
