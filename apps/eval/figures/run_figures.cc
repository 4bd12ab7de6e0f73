#include "apps/eval/figures/run_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "apps/eval/scorers/samples.h"
#include "src/base/ratio.h"

namespace mneme::eval {
namespace {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

struct Share {
  double part = 0, whole = 0;
  double value() const { return whole == 0 ? kNothing : part / whole; }
};

Share share_of(const LayerCost& c, std::string_view what) {
  const auto make = [](std::int64_t part, std::int64_t whole, double scale) {
    return Share{scale * double(part), double(whole)};
  };
  if (what == "budget") return make(c.attended, c.attended_heads, 1);
  if (what == "corrections") return make(c.corrections, c.checks, 100);
  return make(c.replaced, c.selected, 100);
}

std::vector<std::string> methods_of(const std::vector<SuiteRecord>& records) {
  std::vector<std::string> methods;
  for (const SuiteRecord& r : records)
    if (std::find(methods.begin(), methods.end(), r.method) == methods.end()) methods.push_back(r.method);
  return methods;
}

}  // namespace

HeatMap layer_map(const std::vector<SuiteRecord>& records, std::string_view what) {
  HeatMap map{.title = std::string(what) + (what == "budget" ? ", tokens a KV head" : ", %"),
              .x_title = "layer",
              .y_title = "method"};
  double high = 0;
  for (const std::string& method : methods_of(records)) {
    std::vector<Share> layers;
    for (const SuiteRecord& r : records) {
      if (r.method != method) continue;
      layers.resize(std::max(layers.size(), r.layers.size()));
      for (std::size_t l = 0; l < r.layers.size(); ++l) {
        const Share s = share_of(r.layers[l], what);
        layers[l].part += s.part, layers[l].whole += s.whole;
      }
    }
    std::vector<double> values;
    for (const Share& s : layers) values.push_back(s.value());
    if (std::all_of(values.begin(), values.end(), [](double v) { return std::isnan(v); })) continue;
    for (double v : values) high = std::isnan(v) ? high : std::max(high, v);
    map.rows.push_back(method);
    map.values.push_back(std::move(values));
    while (map.columns.size() < map.values.back().size()) map.columns.push_back(std::to_string(map.columns.size()));
  }
  for (auto& row : map.values) row.resize(map.columns.size(), kNothing);
  map.high = what == "budget" ? high : 100;
  return map;
}

LineChart correction_chart(const std::vector<SuiteRecord>& records) {
  LineChart chart{.title = "corrected KV heads along the answer", .x_title = "answer tokens", .y_title = "%"};
  for (const std::string& method : methods_of(records)) {
    std::map<std::int64_t, Share> steps;
    for (const SuiteRecord& r : records) {
      if (r.method != method) continue;
      AlongPoint before;
      for (const AlongPoint& p : r.along) {
        steps[p.tokens].part += 100 * real(p.corrections - before.corrections);
        steps[p.tokens].whole += real(p.checks - before.checks);
        before = p;
      }
    }
    Series s{.name = method};
    for (const auto& [tokens, share] : steps)
      if (share.whole > 0) s.points.emplace_back(tokens, share.value());
    if (!s.points.empty()) chart.series.push_back(std::move(s));
  }
  return chart;
}

std::vector<HeatMap> depth_maps(const std::vector<SuiteRecord>& records) {
  static constexpr std::size_t kDepths = 10;
  std::vector<HeatMap> maps;
  for (const std::string& method : methods_of(records)) {
    std::map<std::int64_t, std::array<Share, kDepths>> by_length;
    for (const SuiteRecord& r : records)
      for (const SuiteAnswer& a : r.answers) {
        if (r.method != method || !(a.depth >= 0)) continue;
        const auto at = std::min(kDepths - 1, static_cast<std::size_t>(a.depth * kDepths));
        by_length[r.length][at].part += average_of_runs(a.scores);
        by_length[r.length][at].whole += 1;
      }
    if (by_length.empty()) continue;
    HeatMap map{.title = method, .x_title = "depth of the fact, %", .y_title = "tokens"};
    for (std::size_t d = 0; d < kDepths; ++d) map.columns.push_back(std::to_string(d * 100 / kDepths));
    for (const auto& [length, depths] : by_length) {
      map.rows.push_back(std::to_string(length));
      map.values.emplace_back();
      for (const Share& s : depths) map.values.back().push_back(s.value());
    }
    maps.push_back(std::move(map));
  }
  return maps;
}

}  // namespace mneme::eval
