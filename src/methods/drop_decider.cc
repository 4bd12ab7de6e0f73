#include "src/methods/drop_decider.h"

#include <algorithm>
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
  const Recipe& recipe = plan.recipe;
  if (const auto* pyramid = std::get_if<PyramidShare>(&recipe.prefill_end->share)) {
    std::int32_t number = 0, n_layers = 0;
    for (std::int32_t l = 0; l < plan.shape.n_layers; ++l) {
      if (l == layer) number = n_layers;
      n_layers += plan.compressed(l) ? 1 : 0;
    }
    return pyramid_keep(*pyramid, recipe.budget, recipe.recent, most_stored(layer, cache), {number, n_layers});
  }
  return recipe.budget - (recipe.prefill_end->when == DropWhen::kOverBudget ? 1 : 0);
}

bool over_budget(std::int32_t layer, const SequenceCache& cache, const Plan& plan) {
  return most_stored(layer, cache) > keep_count(layer, cache, plan);
}

bool ranks_by_mass(const Plan& plan) {
  return plan.drops() && plan.recipe.prefill_end->rank == Rank::kMass;
}

}  // namespace

bool DropDecider::needs_mass(std::int32_t layer, const SequenceCache& cache, const Plan& plan) {
  if (plan.recipe.norm) return true;
  return ranks_by_mass(plan) && plan.observed_rows() != Plan::kAllRows && over_budget(layer, cache, plan);
}

bool DropDecider::needs_suffix_alone(const Plan& plan) {
  return plan.recipe.norm && !ranks_by_mass(plan) && plan.observed_rows() == 1;
}

NormRule DropDecider::norm_rule(std::int32_t layer, const SequenceCache& cache, const Plan& plan) {
  NormRule rule = mneme::norm_rule(*plan.recipe.norm);
  rule.sink = cache.rank_of(layer, 0, std::min(rule.sink, cache.length()));
  return rule;
}

void DropDecider::decide(std::int32_t layer, const DropRows& rows, LayerMass& mass) {
  const Plan& plan = rows.method->plan();
  MethodState::Layer& state = rows.method->layer(layer);
  const std::int32_t n_kv = rows.cache->shape().n_kv_heads;
  state.pending.prefill_end = !rows.decodes;
  LayerStats& stats = rows.method->stats().layers[layer];
  if (!rows.decodes) {
    ++stats.retention.prefill_ends;
    for (std::int32_t m = 0; m < n_kv; ++m) stats.retention.prompt_tokens += rows.cache->n_stored(layer, m);
  }
  if (plan.recipe.norm) return decide_by_norm(layer, rows, mass);
  const std::int32_t n_keep = keep_count(layer, *rows.cache, plan);
  if (over_budget(layer, *rows.cache, plan)) keep_by_rank(layer, rows, mass, n_keep);
  if (rows.decodes) return;
  const auto& kept = state.pending.kept;
  for (std::int32_t m = 0; m < n_kv; ++m) {
    std::int32_t n = kept.empty() ? rows.cache->n_stored(layer, m) : 0;
    for (std::size_t i = 0; !kept.empty() && i < kept[m].size(); ++i) n += kept[m][i].end - kept[m][i].begin;
    stats.retention.kept_tokens += n;
  }
}

void DropDecider::keep_by_rank(std::int32_t layer, const DropRows& rows, LayerMass& mass, std::int32_t n_keep) {
  const Plan& plan = rows.method->plan();
  const Recipe& recipe = plan.recipe;
  const DropStage& stage = *recipe.prefill_end;
  MethodState::Layer& state = rows.method->layer(layer);
  const std::int32_t n_kv = rows.cache->shape().n_kv_heads,
                     rows_a_head = mass.by == LayerMass::By::kQueryHead ? plan.shape.group() : 1;
  const bool one = stage.scope == DropScope::kLayer, all_rows = plan.observed_rows() == Plan::kAllRows;
  const std::int32_t recent = std::max(0, recipe.recent - (stage.when == DropWhen::kOverBudget ? 1 : 0));
  auto& kept = state.pending.kept;
  kept.resize(n_kv);
  scores_.resize(n_kv);
  std::vector<std::int32_t> first(n_kv), keeps(n_kv, n_keep);
  std::vector<std::span<const float>> ranked(n_kv);
  for (std::int32_t m = 0; m < (one ? 1 : n_kv); ++m) {
    const std::size_t n = rows.cache->n_stored(layer, m);
    std::vector<float>& scores = scores_[m];
    scores.assign(n, 0.0f);
    const auto add = [&](std::span<const float> given) {
      MNEME_CHECK(given.size() == n, "a layer decides for heads of {} and {} tokens", n, given.size());
      for (std::size_t t = 0; t < n; ++t) scores[t] += given[t];
    };
    for (std::int32_t h = one ? 0 : m; h < (one ? n_kv : m + 1) && stage.rank == Rank::kMass; ++h) {
      if (all_rows) {
        add(state.pending.mass[h]);
      } else {
        for (std::int32_t g = 0; g < rows_a_head; ++g) add(mass.row(h * rows_a_head + g));
      }
    }
    first[m] = rows.cache->rank_of(layer, m, std::min(recipe.sink, rows.cache->length()));
    const std::size_t begin = first[m], end = n - std::min<std::size_t>(n, recent);
    if (begin >= end) continue;
    smooth(std::span(scores).subspan(begin, end - begin), stage.smooth, stage.smooth_by, scratch_.smoothed);
    ranked[m] = std::span(scores).subspan(begin, end - begin);
  }
  if (const auto* share = std::get_if<HeadShare>(&stage.share)) {
    keeps = head_keeps(*share, ranked, std::max(0, n_keep - recent - recipe.sink));
    for (std::int32_t m = 0; m < n_kv; ++m) keeps[m] += recent + first[m];
  }
  for (std::int32_t m = 0; m < n_kv; ++m) {
    if (one && m > 0)
      kept[m] = kept[0];
    else
      keep_largest(scores_[m], first[m], recent, keeps[m], scratch_, kept[m]);
  }
}

void DropDecider::decide_by_norm(std::int32_t layer, const DropRows& rows, LayerMass& mass) {
  const Plan& plan = rows.method->plan();
  MethodState::Layer& state = rows.method->layer(layer);
  const std::int32_t n_kv = rows.cache->shape().n_kv_heads, n = rows.cache->n_stored(layer, 0);
  for (std::int32_t h = 0; h < size32(mass.length); ++h) {
    MNEME_CHECK(std::cmp_equal(mass.length[h], n), "a layer decides for heads of {} and {} tokens", n, mass.length[h]);
    // Mean over the rows that attend a token.
    for (std::int32_t t = n - rows.observed + 1; t < n; ++t)
      mass.row(h)[t] *= static_cast<float>(rows.observed) / static_cast<float>(n - t);
  }
  const HeadRows heads{.a = mass.values.data(), .stride = n, .n_heads = n_kv * plan.shape.group(), .n = n};
  const NormRule rule = norm_rule(layer, *rows.cache, plan);
  std::vector<TokenRange> kept;
  if (ranks_by_mass(plan)) {
    norm_largest(heads, rule, kept);
  } else {
    std::int32_t sink = rule.sink, from = rows.suffix ? *rows.suffix : norm_suffix(heads, rule);
    if (plan.drops()) {
      sink = std::max(sink, rows.cache->rank_of(layer, 0, std::min(plan.recipe.sink, rows.cache->length())));
      from = std::min(from, n - plan.recipe.recent);
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
