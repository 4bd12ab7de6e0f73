#include "apps/eval/figures/gate_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/base/ratio.h"
#include "src/base/underlying.h"
#include "src/methods/decode_attention.h"
#include "src/selection/gate/gate.h"

namespace mneme::eval {
namespace {

constexpr double kAlongShare = 0.95;  // of the mass gate that others are set beside along the steps

std::string series_name(const ReplayPolicy& p) {
  return fmt::format("{}, {}", gate_name(p.gate), p.unit == 1 ? "tokens" : fmt::format("pages of {}", p.unit));
}

// Mass of each candidate unit, behind it the mass that is attended in any case.
std::vector<double> unit_masses(std::span<const float> mass, const Region& r, std::int32_t unit) {
  std::vector<double> out;
  for (std::int32_t u = r.first_unit; u < r.last_unit; ++u)
    out.push_back(std::accumulate(mass.begin() + u * unit, mass.begin() + (u + 1) * unit, 0.0));
  out.push_back(std::accumulate(mass.begin(), mass.begin() + r.sink, 0.0) +
                std::accumulate(mass.begin() + r.recent_from, mass.end(), 0.0));
  return out;
}

std::vector<std::int32_t> best_units(std::span<const double> masses, const Region& r) {
  std::vector<std::int32_t> ids(masses.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto n = std::min<std::size_t>(r.n_select, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + n, ids.end(), [&](std::int32_t a, std::int32_t b) {
    return masses[a] != masses[b] ? masses[a] > masses[b] : a > b;
  });
  ids.resize(n);
  for (std::int32_t& id : ids) id += r.first_unit;
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace

std::string_view gate_name(ReplayGate gate) {
  static constexpr std::string_view kNames[] = {"cosine", "cosine to the last selection", "every n-th step", "mass"};
  return kNames[underlying(gate)];
}

std::vector<ReplayPolicy> ReplayOptions::policies() const {
  std::vector<ReplayPolicy> out;
  for (const std::int32_t unit : units) {
    for (const ReplayGate gate : {ReplayGate::kCosine, ReplayGate::kCosineToLast})
      for (const double tau : taus) out.push_back({unit, gate, tau});
    for (const double n : intervals) out.push_back({unit, ReplayGate::kInterval, n});
    for (const double share : shares) out.push_back({unit, ReplayGate::kMass, share});
  }
  return out;
}

GateReplay::GateReplay(std::int32_t n_layers, std::int32_t n_kv_heads, ReplayOptions options)
    : n_layers_(n_layers),
      n_kv_heads_(n_kv_heads),
      options_(std::move(options)),
      policies_(options_.policies()),
      sums_(policies_.size()) {}

// A KV head's candidates at a step, in units of one size, and the selection that this step would make.
struct GateReplay::Fresh {
  Region region;
  std::vector<double> masses;      // of the candidates; behind them what is attended in any case
  std::vector<std::int32_t> best;  // ascending
  double most = 0;                 // mass that is attended with it

  double held_by(std::span<const std::int32_t> ids) const {
    double sum = masses.back();
    for (const std::int32_t id : ids)
      if (id >= region.first_unit && id < region.last_unit) sum += masses[id - region.first_unit];
    return sum;
  }
};

GateReplay::Fresh GateReplay::fresh_of(std::span<const float> mass, std::int32_t unit) const {
  Fresh f;
  f.region = region_at({.budget = options_.budget,
                        .sink = options_.sink,
                        .recent = options_.recent,
                        .unit_tokens = unit,
                        .entry_tokens = unit},
                       static_cast<std::int32_t>(std::ssize(mass)));
  if (f.region.everything) return f;
  f.masses = unit_masses(mass, f.region, unit);
  f.best = best_units(std::span<const double>(f.masses).first(f.masses.size() - 1), f.region);
  f.most = f.held_by(f.best);
  return f;
}

void GateReplay::step_policy(std::size_t p, Layer& state, bool turned, std::span<const Fresh> heads) {
  const ReplayPolicy& policy = policies_[p];
  Sums& sums = sums_[p];
  for (std::int32_t m = 0; m < n_kv_heads_; ++m) {
    const Fresh& fresh = heads[m];
    if (fresh.region.everything) return;
    std::vector<std::int32_t>& kept = state.heads[p * n_kv_heads_ + m].units;
    double held = fresh.most > 0 ? fresh.held_by(kept) / fresh.most : 1;
    const bool first = kept.empty(),
               again = first || (policy.gate == ReplayGate::kMass ? !(held >= policy.threshold) : turned);
    if (again) kept = fresh.best, held = 1;
    if (first) continue;  // the document's own step selects under every gate
    sums.selected += again ? 1 : 0;
    sums.held.push_back(static_cast<float>(held));
    if (std::cmp_greater_equal(state.steps, sums.along.size())) sums.along.resize(state.steps + 1);
    sums.along[state.steps].first += held;
    ++sums.along[state.steps].second;
  }
}

void GateReplay::step(const void* sequence, std::int32_t layer, std::span<const float> mass, std::span<const float> q,
                      std::int32_t head_dim) {
  std::vector<Layer>& layers = sequences_[sequence];
  layers.resize(n_layers_);
  Layer& state = layers[layer];
  state.heads.resize(policies_.size() * n_kv_heads_);
  state.selecting.resize(policies_.size());
  const auto n_heads = static_cast<std::int32_t>(std::ssize(q) / head_dim);
  const auto n = static_cast<std::int32_t>(std::ssize(mass) / n_kv_heads_);
  const auto turned_from = [&](std::span<const float> before, double tau) {
    return before.empty() || !(pooled_cosine(GatePool::kMean, q.data(), before.data(), n_heads, head_dim) >= tau);
  };
  std::map<std::int32_t, std::vector<Fresh>> fresh;  // by unit, then KV head
  for (const std::int32_t unit : options_.units)
    for (std::int32_t m = 0; m < n_kv_heads_; ++m)
      fresh[unit].push_back(fresh_of(mass.subspan(std::size_t{0} + m * n, n), unit));
  for (std::size_t p = 0; p < policies_.size(); ++p) {
    const ReplayPolicy& policy = policies_[p];
    std::vector<float>& selecting = state.selecting[p];
    const bool cosine = policy.gate == ReplayGate::kCosine || policy.gate == ReplayGate::kCosineToLast;
    const bool turned =
        cosine ? turned_from(policy.gate == ReplayGate::kCosine ? state.last : selecting, policy.threshold)
               : policy.gate == ReplayGate::kInterval && state.steps % static_cast<std::int64_t>(policy.threshold) == 0;
    step_policy(p, state, turned, fresh.at(policy.unit));
    if (turned) selecting.assign(q.begin(), q.end());
  }
  state.last.assign(q.begin(), q.end());
  ++state.steps;
}

std::vector<GateReplay::Result> GateReplay::results() const {
  std::vector<Result> out;
  for (std::size_t p = 0; p < policies_.size(); ++p) {
    const Sums& sums = sums_[p];
    Result r{.policy = policies_[p], .n = std::ssize(sums.held), .selected = sums.selected};
    std::vector<float> held = sums.held;
    std::sort(held.begin(), held.end());
    r.held = ratio(std::accumulate(held.begin(), held.end(), 0.0), held.size());
    const std::size_t tenth = (held.size() + 9) / 10;
    r.worst_tenth = ratio(std::accumulate(held.begin(), held.begin() + tenth, 0.0), tenth);
    for (const auto& [sum, count] : sums.along) r.along.push_back(ratio(sum, count));
    out.push_back(std::move(r));
  }
  return out;
}

GateReplayObserver::GateReplayObserver(const MethodShape& shape, ReplayOptions options)
    : shape_(shape), replay_(shape.n_layers, shape.n_kv_heads, std::move(options)) {}

void GateReplayObserver::see(std::int32_t layer, const DecodeRow& row, const AttentionShape& shape) {
  const std::int32_t n = row.cache->length();
  std::vector<float> masses(std::int64_t{shape_.n_kv_heads} * n);
  std::vector<float> scores(std::int64_t{shape.group} * n);
  std::vector<KvRun> runs;
  for (std::int32_t m = 0; m < shape_.n_kv_heads; ++m) {
    runs.clear();
    row.cache->append_runs(layer, m, 0, n, runs);
    key_score_cpu(row.q + std::int64_t{m} * shape.group * shape.head_dim, shape, runs, scores.data(), n);
    for (std::int32_t g = 0; g < shape.group; ++g) {
      const std::span<float> s = std::span(scores).subspan(std::int64_t{g} * n, n);
      const float largest = *std::max_element(s.begin(), s.end());
      double sum = 0;
      for (float& x : s) sum += x = std::exp((x - largest) * shape.scale);
      for (std::int32_t t = 0; t < n; ++t)
        masses[std::int64_t{m} * n + t] += static_cast<float>(s[t] / (sum * shape.group));
    }
  }
  replay_.step(row.cache, layer, masses, std::span(row.q, std::int64_t{shape_.n_heads} * shape.head_dim),
               shape.head_dim);
}

std::vector<LineChart> replay_charts(std::span<const GateReplay::Result> results) {
  LineChart mean{.title = "held mass, mean", .x_title = "selections made again, %", .y_title = "%"};
  LineChart worst{.title = "held mass, least tenth", .x_title = "selections made again, %", .y_title = "%"};
  LineChart along{.title = "held mass along the steps", .x_title = "step after the document", .y_title = "%"};
  double rate = -1;
  const auto rate_of = [](const GateReplay::Result& r) { return 100 * ratio(r.selected, r.n); };
  for (const GateReplay::Result& r : results) {
    const std::string name = series_name(r.policy);
    if (mean.series.empty() || mean.series.back().name != name) {
      mean.series.push_back({.name = name, .points = {}});
      worst.series.push_back({.name = name, .points = {}});
    }
    mean.series.back().points.emplace_back(rate_of(r), 100 * r.held);
    worst.series.back().points.emplace_back(rate_of(r), 100 * r.worst_tenth);
    if (r.policy.gate == ReplayGate::kMass && r.policy.threshold == kAlongShare && rate < 0) rate = rate_of(r);
  }
  // Takes of every series the policy that selects about as often as the mass gate of tokens.
  for (const Series& s : mean.series) {
    const GateReplay::Result* nearest = nullptr;
    for (const GateReplay::Result& r : results)
      if (series_name(r.policy) == s.name &&
          (nearest == nullptr || std::abs(rate_of(r) - rate) < std::abs(rate_of(*nearest) - rate)))
        nearest = &r;
    Series points{.name = fmt::format("{}, {:.0f} %", s.name, rate_of(*nearest)), .points = {}};
    for (std::size_t i = 1; i < nearest->along.size(); ++i) points.points.emplace_back(i, 100 * nearest->along[i]);
    along.series.push_back(std::move(points));
  }
  return {mean, worst, along};
}

}  // namespace mneme::eval
