#include "src/methods/drop_decider.h"

#include <algorithm>

#include "src/base/check.h"

namespace mneme {
namespace {

// Tokens that a drop with a plain budget keeps. If every step is held to the budget, one is reserved for the next
// step's token.
std::int32_t keep_count(const Recipe& recipe) {
  return recipe.budget - (recipe.prefill_end->when == DropWhen::kOverBudget ? 1 : 0);
}

bool over_budget(std::int32_t layer, const SequenceCache& cache, const Plan& plan) {
  bool over = false;
  for (std::int32_t m = 0; m < cache.shape().n_kv_heads; ++m)
    over = over || cache.n_stored(layer, m) > keep_count(plan.recipe);
  return over;
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
  const std::int32_t n_keep = keep_count(plan.recipe);
  if (over_budget(layer, *rows.cache, plan)) keep_by_rank(layer, rows, mass, n_keep);
  if (rows.decodes) return;
  for (std::int32_t m = 0; m < n_kv; ++m)
    stats.retention.kept_tokens += std::min(rows.cache->n_stored(layer, m), n_keep);
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
  for (std::int32_t m = 0; m < n_kv; ++m) {
    if (one && m > 0) {
      kept[m] = kept[0];
      continue;
    }
    const std::size_t n = rows.cache->n_stored(layer, m);
    scores_.assign(n, 0.0f);
    const auto add = [&](std::span<const float> given) {
      MNEME_CHECK(given.size() == n, "a layer decides for heads of {} and {} tokens", n, given.size());
      for (std::size_t t = 0; t < n; ++t) scores_[t] += given[t];
    };
    for (std::int32_t h = one ? 0 : m; h < (one ? n_kv : m + 1) && stage.rank == Rank::kMass; ++h) {
      if (all_rows) {
        add(state.pending.mass[h]);
      } else {
        for (std::int32_t g = 0; g < rows_a_head; ++g) add(mass.row(h * rows_a_head + g));
      }
    }
    const std::int32_t sink = rows.cache->rank_of(layer, m, std::min(recipe.sink, rows.cache->length()));
    const auto first = static_cast<std::size_t>(sink), ranked = n - std::min<std::size_t>(n, recent);
    if (first < ranked)
      smooth(std::span(scores_).subspan(first, ranked - first), stage.smooth, stage.smooth_by, scratch_.smoothed);
    keep_largest(scores_, sink, recent, n_keep, scratch_, kept[m]);
  }
}

void DropDecider::decide_by_norm(std::int32_t layer, const DropRows& rows, LayerMass& mass) {
  const Plan& plan = rows.method->plan();
  MethodState::Layer& state = rows.method->layer(layer);
  const std::int32_t n_kv = rows.cache->shape().n_kv_heads, n = rows.cache->n_stored(layer, 0);
  for (std::size_t h = 0; h < mass.length.size(); ++h) {
    MNEME_CHECK(mass.length[h] == static_cast<std::size_t>(n), "a layer decides for heads of {} and {} tokens", n,
                mass.length[h]);
    // Mean over the rows that attend a token.
    for (std::int32_t t = n - rows.observed + 1; t < n; ++t)
      mass.row(static_cast<std::int32_t>(h))[t] *= static_cast<float>(rows.observed) / static_cast<float>(n - t);
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
