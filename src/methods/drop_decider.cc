#include "src/methods/drop_decider.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/base/check.h"
#include "src/base/size32.h"
#include "src/selection/mass/budget_share.h"

namespace mneme {
namespace {

std::int32_t most_stored(std::int32_t layer, const SequenceCache& cache) {
  std::int32_t most = 0;
  for (std::int32_t m = 0; m < cache.shape().n_kv_heads; ++m) most = std::max(most, cache.n_stored(layer, m));
  return most;
}

// Tokens that a drop keeps of a layer's heads, on average. If every step is held to the budget, one is reserved for the
// next step's token.
std::int32_t keep_count(std::int32_t layer, const SequenceCache& cache, const Plan& plan) {
  const DropPlan& drop = *plan.drop;
  if (drop.share == ShareKind::kPyramid) {
    std::int32_t number = 0, n_layers = 0;
    for (std::int32_t l = 0; l < plan.shape.n_layers; ++l) {
      if (l == layer) number = n_layers;
      n_layers += plan.compressed(l) ? 1 : 0;
    }
    return pyramid_keep(drop.pyramid, drop.budget, drop.recent, most_stored(layer, cache), {number, n_layers});
  }
  return drop.budget - (drop.when == DropWhen::kOverBudget ? 1 : 0);
}

bool over_budget(std::int32_t layer, const SequenceCache& cache, const Plan& plan) {
  return most_stored(layer, cache) > keep_count(layer, cache, plan);
}

bool ranks_by_mass(const Plan& plan) {
  return plan.drops() && plan.drop->rank != Rank::kPosition;
}

// Last tokens that a drop keeps.
std::int32_t window_kept(const DropPlan& drop) {
  return std::max(0, drop.recent - (drop.when == DropWhen::kOverBudget ? 1 : 0));
}

}  // namespace

bool DropDecider::needs_mass(std::int32_t layer, const SequenceCache& cache, const Plan& plan) {
  if (plan.norm) return true;
  if (plan.drops() && plan.drop->rank == Rank::kStamp) return true;
  return ranks_by_mass(plan) && plan.observed_rows != Plan::kAllRows && over_budget(layer, cache, plan);
}

bool DropDecider::needs_suffix_alone(const Plan& plan) {
  return plan.norm && !ranks_by_mass(plan) && plan.observed_rows == 1;
}

NormRule DropDecider::norm_rule(std::int32_t layer, const SequenceCache& cache, const Plan& plan) {
  NormRule rule = *plan.norm;
  rule.sink = cache.rank_of(layer, 0, std::min(rule.sink, cache.length()));
  return rule;
}

void DropDecider::decide(std::int32_t layer, const DropQueries& rows, LayerMass& mass) {
  const Plan& plan = rows.method->plan();
  MethodState::Layer& state = rows.method->layer(layer);
  state.pending.prefill_end = !rows.decodes;
  LayerStats& stats = rows.method->stats().layers[layer];
  if (!rows.decodes) {
    ++stats.retention.prefill_ends;
    for (std::int32_t m = 0; m < rows.cache->shape().n_kv_heads; ++m)
      stats.retention.prompt_tokens += rows.cache->n_stored(layer, m);
  }
  if (plan.norm) return decide_by_norm(layer, rows, mass);
  if (by_all_layers(plan)) return defer(layer, rows, mass);
  if (plan.drop->rank == Rank::kStamp) {
    decide_by_stamps(layer, rows, mass);
  } else if (over_budget(layer, *rows.cache, plan)) {
    keep_by_rank(layer, rows, mass, keep_count(layer, *rows.cache, plan));
  }
  count_kept(layer, rows);
}

// Counts what a prompt's end kept.
void DropDecider::count_kept(std::int32_t layer, const DropQueries& rows) {
  if (rows.decodes) return;
  const auto& kept = rows.method->layer(layer).pending.kept;
  std::int64_t& total = rows.method->stats().layers[layer].retention.kept_tokens;
  for (std::int32_t m = 0; m < rows.cache->shape().n_kv_heads; ++m) {
    if (kept.empty()) total += rows.cache->n_stored(layer, m);
    for (std::size_t i = 0; !kept.empty() && i < kept[m].size(); ++i) total += kept[m][i].end - kept[m][i].begin;
  }
}

// scores_, smoothed between sinks and window, and sinks_; of the first head alone where all decide together.
void DropDecider::rank_heads(std::int32_t layer, const DropQueries& rows, LayerMass& mass) {
  const Plan& plan = rows.method->plan();
  const DropPlan& stage = *plan.drop;
  const MethodState::Layer& state = rows.method->layer(layer);
  const std::int32_t n_kv = rows.cache->shape().n_kv_heads,
                     rows_a_head = mass.by == LayerMass::By::kQueryHead ? plan.shape.group() : 1;
  const bool one = stage.scope == DropScope::kLayer, all_rows = plan.observed_rows == Plan::kAllRows;
  scores_.resize(n_kv);
  sinks_.resize(n_kv);
  const auto observed = static_cast<float>(rows.observed);
  for (std::int32_t m = 0; m < (one ? 1 : n_kv); ++m) {
    const std::size_t n = rows.cache->n_stored(layer, m);
    std::vector<float>& scores = scores_[m];
    scores.assign(n, 0.0f);
    const auto add = [&](std::span<const float> given) {
      MNEME_CHECK(given.size() == n, "a layer decides for heads of {} and {} tokens", n, given.size());
      for (std::size_t t = 0; t < n; ++t) scores[t] += given[t];
    };
    const auto add_variance = [&](std::span<const float> sums, std::span<const float> squares) {
      for (std::size_t t = 0; t < n; ++t) {
        const float variance =
            observed < 2 ? 0.0f : std::max(0.0f, (squares[t] - sums[t] * sums[t] / observed) / (observed - 1));
        scores[t] += sums[t] / observed + stage.gamma * variance;
      }
    };
    for (std::int32_t h = one ? 0 : m; h < (one ? n_kv : m + 1) && stage.rank != Rank::kPosition; ++h) {
      if (all_rows) {
        add(state.pending.mass[h]);
        continue;
      }
      for (std::int32_t g = h * rows_a_head; g < (h + 1) * rows_a_head; ++g)
        stage.rank == Rank::kMassVariance ? add_variance(mass.row(g), mass.squares_of(g)) : add(mass.row(g));
    }
    sinks_[m] = rows.cache->rank_of(layer, m, std::min(stage.sink, rows.cache->length()));
    const std::int32_t begin = sinks_[m], end = size32(scores) - std::min(size32(scores), window_kept(stage));
    if (begin < end)
      smooth(std::span(scores).subspan(begin, end - begin), stage.smooth, stage.smooth_by, scratch_.smoothed);
  }
}

void DropDecider::keep_by_rank(std::int32_t layer, const DropQueries& rows, LayerMass& mass, std::int32_t n_keep) {
  const DropPlan& stage = *rows.method->plan().drop;
  const std::int32_t n_kv = rows.cache->shape().n_kv_heads, recent = window_kept(stage);
  const bool one = stage.scope == DropScope::kLayer;
  auto& kept = rows.method->layer(layer).pending.kept;
  kept.resize(n_kv);
  rank_heads(layer, rows, mass);
  std::vector<std::int32_t> keeps(n_kv, n_keep);
  if (stage.share == ShareKind::kHeads) {
    std::vector<std::span<const float>> ranked(n_kv);
    for (std::int32_t m = 0; m < n_kv; ++m) {
      const std::int32_t begin = sinks_[m], end = size32(scores_[m]) - std::min(size32(scores_[m]), recent);
      if (begin < end) ranked[m] = std::span<const float>(scores_[m]).subspan(begin, end - begin);
    }
    keeps = head_keeps(stage.heads, ranked, std::max(0, n_keep - recent - stage.sink));
    for (std::int32_t m = 0; m < n_kv; ++m) keeps[m] += recent + sinks_[m];
  }
  for (std::int32_t m = 0; m < n_kv; ++m) {
    if (one && m > 0)
      kept[m] = kept[0];
    else
      keep_largest(scores_[m], sinks_[m], recent, keeps[m], scratch_, kept[m]);
  }
}

// Saves what the last layer needs to decide for all of them.
void DropDecider::defer(std::int32_t layer, const DropQueries& rows, LayerMass& mass) {
  const Plan& plan = rows.method->plan();
  MethodState::Pending& pending = rows.method->layer(layer).pending;
  if (over_budget(layer, *rows.cache, plan)) {
    const PreferenceShare& share = plan.drop->preference;
    rank_heads(layer, rows, mass);
    pending.scores = scores_;
    double variance = 0;
    const double n = rows.observed;
    for (std::int32_t h = 0; h < size32(mass.length) && n > 1; ++h) {
      const std::span<const float> sums = mass.row(h), squares = mass.squares_of(h);
      const std::int32_t end = size32(sums) - std::min(size32(sums), plan.drop->recent);
      for (std::int32_t t = 0; t < end; ++t)
        variance += std::max(0.0, (double{squares[t]} - double{sums[t]} * sums[t] / n) / (n - 1));
    }
    pending.preference = std::pow(mass.entropy, 1 / double{share.tau1}) * std::pow(variance, 1 / double{share.tau2});
  }
  std::int32_t last = layer;
  for (std::int32_t l = layer + 1; l < plan.shape.n_layers; ++l)
    if (plan.compressed(l)) last = l;
  if (last == layer) share_by_preference(rows);
}

// The layers that are over the budget share what they have together.
void DropDecider::share_by_preference(const DropQueries& rows) {
  const Plan& plan = rows.method->plan();
  const DropPlan& stage = *plan.drop;
  const std::int32_t n_kv = rows.cache->shape().n_kv_heads;
  std::vector<std::int32_t> layers, caps;
  std::vector<double> preference;
  for (std::int32_t l = 0; l < plan.shape.n_layers; ++l) {
    const MethodState::Pending& pending = rows.method->layer(l).pending;
    if (!plan.compressed(l) || pending.scores.empty()) continue;
    layers.push_back(l);
    preference.push_back(pending.preference);
    caps.push_back(most_stored(l, *rows.cache) - stage.recent);
  }
  const std::vector<std::int32_t> keeps =
      preference_keeps(preference, caps, std::int64_t{stage.budget - stage.recent} * std::ssize(layers));
  for (std::size_t i = 0; i < layers.size(); ++i) {
    MethodState::Pending& pending = rows.method->layer(layers[i]).pending;
    pending.kept.resize(n_kv);
    for (std::int32_t m = 0; m < n_kv; ++m) {
      const std::int32_t sinks = rows.cache->rank_of(layers[i], m, std::min(stage.sink, rows.cache->length()));
      const bool one = stage.scope == DropScope::kLayer;
      keep_largest(pending.scores[one ? 0 : m], sinks, stage.recent, keeps[i] + stage.recent, scratch_,
                   pending.kept[m]);
    }
    pending.scores.clear();
  }
  for (std::int32_t l = 0; l < plan.shape.n_layers; ++l)
    if (plan.compressed(l)) count_kept(l, rows);
}

void DropDecider::decide_by_norm(std::int32_t layer, const DropQueries& rows, LayerMass& mass) {
  const Plan& plan = rows.method->plan();
  MethodState::Layer& state = rows.method->layer(layer);
  const std::int32_t n_kv = rows.cache->shape().n_kv_heads, n = rows.cache->n_stored(layer, 0);
  for (std::int32_t h = 0; h < size32(mass.length); ++h) {
    MNEME_CHECK(std::cmp_equal(mass.length[h], n), "a layer decides for heads of {} and {} tokens", n, mass.length[h]);
    // Mean over the rows that attend a token.
    for (std::int32_t t = n - rows.observed + 1; t < n; ++t)
      mass.row(h)[t] *= static_cast<float>(rows.observed) / static_cast<float>(n - t);
  }
  const HeadAttention heads{.a = mass.values.data(), .stride = n, .n_heads = n_kv * plan.shape.group(), .n = n};
  const NormRule rule = norm_rule(layer, *rows.cache, plan);
  std::vector<TokenRange> kept;
  if (ranks_by_mass(plan)) {
    norm_largest(heads, rule, kept);
  } else {
    std::int32_t sink = rule.sink, from = rows.suffix ? *rows.suffix : norm_suffix(heads, rule);
    if (plan.drops()) {
      sink = std::max(sink, rows.cache->rank_of(layer, 0, std::min(plan.drop->sink, rows.cache->length())));
      from = std::min(from, n - plan.drop->recent);
    }
    if (from > sink && sink > 0) kept.push_back({0, sink});
    kept.push_back({from > sink ? from : 0, n});
  }
  std::int32_t n_kept = 0;
  for (const TokenRange& r : kept) n_kept += r.end - r.begin;
  rows.method->stats().layers[layer].retention.kept_tokens += std::int64_t{n_kept} * n_kv;
  state.pending.budget = n_kept;
  if (plan.drops() && n_kept < n) state.pending.kept.assign(n_kv, kept);
}

}  // namespace mneme
